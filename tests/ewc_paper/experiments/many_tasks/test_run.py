"""Every method gets its own options, and a search tries the same combinations for all."""

from typing import Any

from ewc_paper.experiments.many_tasks.run import ManyTasks


def recipes(**changes: Any) -> dict[str, dict[str, Any]]:
    parts = ManyTasks.preset("quick", **changes).parts()
    return {part.name: part.config["recipe"] for part in parts}


def test_dropout_has_a_rate_and_epochs_of_its_own() -> None:
    made = recipes(lr=0.1, epochs=2, dropout_lr=0.02, dropout_epochs=7)
    found = {name: (recipe["lr"], recipe["epochs"]) for name, recipe in made.items()}
    assert found["dropout-0-seed0"] == (0.02, 7)
    assert found["ewc-0-seed0"] == found["sgd-0-seed0"] == (0.1, 2)


def test_the_dashed_line_is_plain_training_on_one_task() -> None:
    single = recipes(tasks=5)["single-0-seed0"]
    assert (single["method"], single["tasks"]) == ("sgd", 1)


def test_l2_has_a_strength_of_its_own() -> None:
    made = recipes(methods=("ewc", "l2"), strength=9.0, l2_strength=0.5)
    assert made["ewc-0-seed0"]["strength"] == 9.0
    assert made["l2-0-seed0"]["strength"] == 0.5


def test_the_search_draws_the_same_combinations_within_their_ranges() -> None:
    config = ManyTasks.preset("paper", search=20, seeds=2, strength_range=(1.0, 10.0))
    parts = config.parts()
    assert len(parts) == 3 * 20 * 2
    recipes = [part.config["recipe"] for part in parts]
    assert all(1e-5 <= recipe["lr"] <= 1e-3 for recipe in recipes)
    assert all(400 <= recipe["width"] <= 2000 for recipe in recipes)
    assert all(1 <= r["strength"] <= 10 for r in recipes if r["method"] == "ewc")
    assert len({recipe["lr"] for recipe in recipes}) == 20
    assert recipes == [part.config["recipe"] for part in config.parts()]
