"""What a story looks at in its world: who serves how much, what runs, where the rollout stands, what the checks say."""

from tests.domain.simulated_world import World

from tandem_operator.domain.progress import Stage


def weights(world: World) -> dict[str, int]:
    policy = world.policy()
    assert policy is not None
    return {revision["name"]: revision["weight"] for revision in policy["revisions"]}


def served(world: World) -> dict[str, int]:
    """Without those that get nobody."""
    return {name: weight for name, weight in weights(world).items() if weight}


def deployments(world: World) -> set[str]:
    return {name for kind, name in world.objects if kind == "Deployment"}


def stage(world: World) -> Stage:
    return world.progress.rollout.stage


def checks(world: World) -> dict[str, dict[str, str]]:
    canary = world.status["canary"]
    assert isinstance(canary, dict)
    return {check["name"]: check for check in canary["checks"]}
