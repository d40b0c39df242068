"""Knows what a planted fault is: one edit of one source file, why it is real, and which tests should see it.

Refuses to know how tests are run.
"""

from dataclasses import dataclass

INVARIANCE = "tests/exactness/test_drafter_invariance.py"
SAMPLED = "tests/exactness/test_sampled_laws.py::test_one_and_two_tokens_have_the_targets_law"
ONE_BY_ONE, IN_ROUNDS = f"{SAMPLED}[Rejection cold with bias]", f"{SAMPLED}[Rejection min-p]"
THROUGH_LOOPS = "tests/exactness/test_sampled_laws.py::test_the_law_holds_through_driver_session_and_loops"
EARLY_ENDS = "tests/exactness/test_sampled_laws.py::test_the_law_holds_where_drafting_ends_early"
NOISE = "tests/exactness/test_noise_independence.py"
EXACT = "tests/laws/test_chains.py::test_the_targets_law_is_emitted_exactly"
LEFT_OUT = "tests/seams/test_verify_budget.py::test_what_is_left_out_is_the_same_whatever_was_drawn"
SHARED_STEPS = "tests/laws/test_shared_steps.py::test_two_sessions_that_share_a_full_step_keep_their_law"
VERDICTS = "tests/agreement/test_rejection_agreement.py::test_the_verdicts_of_a_ragged_batch_are_the_reference_verdicts"
_SAMPLER = "tests/agreement/test_sampler_agreement.py"
SAME_LAW = f"{_SAMPLER}::test_the_law_after_all_processors_is_the_reference_law"
EVERY_FILTER = f"{_SAMPLER}::test_every_filter_sees_what_the_ones_before_it_left"
SAME_CHOICE = f"{_SAMPLER}::test_the_coupled_choice_is_the_reference_choice"
NEXT_TO_A_MASS = (
    "tests/agreement/test_coupling_agreement.py::test_a_top_p_next_to_a_mass_cuts_float32_rows_as_the_domain_does"
)
SENT_LAW = f"{_SAMPLER}::test_a_draft_draws_from_the_law_that_it_sends"
DRAWN = f"{_SAMPLER}::test_a_draft_draws_from_the_law_that_it_sends_wherever_u_falls"

PROOFS = (
    EXACT,
    VERDICTS,
    SAME_LAW,
    EVERY_FILTER,
    SAME_CHOICE,
    NEXT_TO_A_MASS,
    SENT_LAW,
    DRAWN,
    NOISE,
    INVARIANCE,
    SAMPLED,
    THROUGH_LOOPS,
    EARLY_ENDS,
    LEFT_OUT,
    SHARED_STEPS,
)
"""All that may kill a mutant: tests of identity and of laws, never a comparison with a recorded output."""


@dataclass(frozen=True)
class Fault:
    """`old` occurs exactly once in `file` (below `tandem_runtime/`) and becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    why: str
    """What goes wrong, and where it was seen."""
    tests: tuple[str, ...]
    """Node ids of the tests that should fail, run in this order until one does."""


class StaleFault(Exception):
    """An entry no longer fits the source: its text is gone, or is there more than once."""


def planted(fault: Fault, source: str) -> str:
    """The source with the fault in it. Raises StaleFault."""
    times = source.count(fault.old)
    if times != 1:
        raise StaleFault(f"{fault.name}: its text occurs {times} times in {fault.file}, not once; mend the entry")
    return source.replace(fault.old, fault.new)
