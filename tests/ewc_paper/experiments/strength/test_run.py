"""One network per strength, way and seed."""

from ewc_paper.experiments.strength.run import Strength


def test_every_strength_is_tried_in_every_way_with_every_seed() -> None:
    parts = Strength.preset("quick", strengths=(1.0, 2.5), seed=4, seeds=2).parts()
    names = ("how", "strength", "seed")
    found = {part.name: tuple(part.config["recipe"][name] for name in names) for part in parts}
    assert found == {
        f"{how}-{strength:g}-seed{seed}": (how, strength, seed)
        for how in ("proximal", "gradient")
        for strength in (1.0, 2.5)
        for seed in (4, 5)
    }
