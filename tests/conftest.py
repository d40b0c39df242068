"""One hypothesis profile for every test: a slow machine is no failure, and a failing example is printed whole."""

from hypothesis import settings

settings.register_profile("tandem", deadline=None, print_blob=True)
settings.load_profile("tandem")
