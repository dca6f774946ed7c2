"""The memory is the sum of its tasks, holds on to its model, and a failure changes nothing."""

import copy
import gc
import pickle

import pytest
import torch
from support.memory import (
    assert_same_pull,
    equation_3,
    learn,
    make_batches,
    make_model,
    move,
    one_step,
    weights,
)
from torch import nn
from torch.optim import SGD, Adam

from ewc.fisher import fisher_diagonal
from ewc.memory import EWC


@pytest.mark.parametrize("keep_tasks", [False, True, "cpu"])
def test_the_penalty_is_equation_3_for_all_tasks(keep_tasks):
    model = make_model()
    memory = EWC(model, strength=7.0, keep_tasks=keep_tasks)
    wells = []
    for seed in range(4):
        move(model, seed)
        anchor = weights(model)
        expected = fisher_diagonal(model, make_batches(seed))
        fisher = memory.consolidate(make_batches(seed), task=f"{seed}")
        torch.testing.assert_close(fisher, expected, rtol=0, atol=0)
        wells.append((expected, anchor))
        move(model, seed + 100)
        assert_same_pull(model, memory.penalty(), equation_3(model, wells, 7.0))
    assert memory.tasks == ("0", "1", "2", "3")


def test_an_empty_memory_has_no_penalty():
    assert EWC(make_model(), strength=7.0).penalty().item() == 0.0


def test_the_strength_can_be_changed_at_any_time():
    model = make_model()
    memory = EWC(model, strength=1.0)
    learn(memory, model, "A", 1)
    move(model, 2)
    before = memory.penalty()
    memory.strength = 3.0
    torch.testing.assert_close(memory.penalty(), 3.0 * before)


def test_fisher_options_reach_the_fisher():
    model = make_model()
    memory = EWC(model, strength=1.0)
    fisher = memory.consolidate(make_batches(1), kind="empirical", max_samples=6)
    expected = fisher_diagonal(model, make_batches(1), kind="empirical", max_samples=6)
    torch.testing.assert_close(fisher, expected)


def test_tasks_without_a_name_are_numbered():
    model = make_model()
    memory = EWC(model, strength=1.0, keep_tasks=True)
    for _ in range(3):
        memory.anchor(1.0)
    assert memory.tasks == ("task 1", "task 2", "task 3")
    memory.forget("task 2")
    memory.anchor(1.0)
    assert memory.tasks == ("task 1", "task 3", "task 4")


def test_decay_anchors_all_of_the_decayed_precision_at_the_newest_solution():
    model = make_model()
    memory = EWC(model, strength=2.0, decay=0.5)
    (f_a, _), (f_b, _), (f_c, at_c) = (
        learn(memory, model, task, seed) for seed, task in enumerate("ABC")
    )
    move(model, 9)
    running = {name: 0.25 * f_a[name] + 0.5 * f_b[name] + f_c[name] for name in f_a}
    assert_same_pull(model, memory.penalty(), equation_3(model, [(running, at_c)], 2.0))


def test_floor_adds_a_fraction_of_each_parameters_mean():
    model = make_model()
    plain = fisher_diagonal(model, make_batches(1))
    fisher = EWC(model, strength=1.0).consolidate(make_batches(1), floor=0.5)
    for name, tensor in plain.items():
        torch.testing.assert_close(fisher[name], tensor + 0.5 * tensor.mean())


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_normalize_sets_the_trace_floor_included(floor):
    model = make_model()
    memory = EWC(model, strength=1.0)
    fisher = memory.consolidate(make_batches(1), floor=floor, normalize=10.0)
    assert sum(f.sum().item() for f in fisher.values()) == pytest.approx(10.0)
    floored = EWC(model, strength=1.0).consolidate(make_batches(1), floor=floor)
    ratio = fisher["head.bias"] / floored["head.bias"]
    torch.testing.assert_close(
        fisher["body.weight"] / floored["body.weight"], ratio[0].expand(5, 4)
    )


def test_a_number_is_the_same_precision_for_all_weights():
    model = make_model()
    memory = EWC(model, strength=4.0)
    before = weights(model)
    memory.anchor(0.5, task="L2")
    move(model, 1)
    ones = {name: torch.full_like(w, 0.5) for name, w in before.items()}
    assert_same_pull(model, memory.penalty(), equation_3(model, [(ones, before)], 4.0))


class Bomb:
    """Batches that break after the first one."""

    def __init__(self, error):
        self.error = error

    def __iter__(self):
        yield make_batches(1)[0]
        raise self.error


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
@pytest.mark.parametrize("keep_tasks", [False, True])
def test_a_consolidation_that_fails_changes_nothing(error, keep_tasks):
    model = make_model()
    memory = EWC(model, strength=1.0, keep_tasks=keep_tasks)
    learn(memory, model, "A", 1)
    move(model, 2)
    before = memory.state_dict()
    with pytest.raises(type(error)):
        memory.consolidate(Bomb(error), task="A" if keep_tasks else "B")
    after = memory.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_weights_that_are_nan_are_not_consolidated():
    model = make_model()
    memory = EWC(model, strength=1.0)
    with torch.no_grad():
        model.body.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"(?i)nan|finite"):
        memory.consolidate(make_batches(1))
    with pytest.raises(ValueError, match=r"finite weights, but 'body.weight'"):
        memory.anchor(1.0)
    assert memory.tasks == ()


def equal(state, other):
    return state.keys() == other.keys() and all(torch.equal(state[k], other[k]) for k in state)


@pytest.mark.parametrize("options", [{}, {"floor": 0.1}, {"floor": 0.1, "normalize": 5.0}])
@pytest.mark.parametrize("parameters", [None, "!head.*"])
def test_a_ready_fisher_makes_the_same_memory_bit_for_bit(options, parameters):
    model = make_model()
    computed, given = (EWC(model, strength=3.0, parameters=parameters) for _ in range(2))
    for seed, task in enumerate("AB"):
        move(model, seed)
        inputs = [x for x, _ in make_batches(seed)]  # a Fisher does not show labels
        fisher = fisher_diagonal(model, inputs, parameters=parameters)
        for memory in (computed, given):
            memory.penalty()
        first = computed.consolidate(inputs, task=task, **options)
        second = given.consolidate(fisher, task=task, **options)
        assert equal(first, second)
    assert equal(computed.state_dict(), given.state_dict())


def given(memory, how, fisher):
    """Give a memory a mapping of tensors, in one of the two ways to say it."""
    return memory.anchor(fisher) if how == "anchor" else memory.consolidate(fisher)


@pytest.mark.parametrize("how", ["anchor", "consolidate"])
def test_given_tensors_are_neither_kept_nor_changed(how):
    model = make_model()
    memory = EWC(model, strength=1.0)
    fisher = fisher_diagonal(model, make_batches(1))
    copies = {name: tensor.clone() for name, tensor in fisher.items()}
    returned = given(memory, how, fisher)
    assert equal(fisher, copies)
    move(model, 2)
    before = memory.penalty()
    for tensor in (*fisher.values(), *(returned or {}).values()):
        tensor.zero_()
    assert torch.equal(memory.penalty(), before)


@pytest.mark.parametrize("how", ["anchor", "consolidate"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("head.bias"), "expected a (Fisher|precision) for 'head.bias'"),
        (lambda f: f.update(tail=torch.ones(1)), "for 'tail', which is not a selected parameter"),
        (lambda f: f.update({"head.bias": torch.ones(2)}), r"\(3,\) for 'head.bias', got \(2,\)"),
        (lambda f: f["head.bias"].fill_(-1.0), "finite (Fisher|precision) >= 0 for 'head.bias'"),
        (lambda f: f["head.bias"].fill_(torch.nan), ">= 0 for 'head.bias'"),
        (lambda f: f["head.bias"].fill_(torch.inf), ">= 0 for 'head.bias'"),
    ],
)
@pytest.mark.parametrize("keep_tasks", [False, True])
def test_tensors_that_do_not_fit_are_refused_and_change_nothing(change, message, keep_tasks, how):
    model = make_model()
    memory = EWC(model, strength=1.0, keep_tasks=keep_tasks)
    memory.consolidate(make_batches(1), task="A")
    before = memory.state_dict()
    fisher = fisher_diagonal(model, make_batches(1))
    change(fisher)
    with pytest.raises(ValueError, match=message):
        given(memory, how, fisher)
    assert equal(memory.state_dict(), before)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda m: EWC(m, strength=-1.0), "strength >= 0, got -1"),
        (lambda m: EWC(m, strength=float("nan")), "strength >= 0, got nan"),
        (lambda m: setattr(EWC(m, strength=2.0), "strength", float("inf")), "strength >= 0, got"),
        (lambda m: EWC(m, strength=1.0, decay=1.5), r"0 <= decay <= 1, got 1\.5"),
        (lambda m: EWC(m, strength=1.0, parameters="tail.*"), "matches no parameter name"),
        (lambda m: EWC(m).anchor(-1.0), "precision to be finite and >= 0, got -1"),
        (lambda m: EWC(m).consolidate(Bomb("read"), floor=-0.1), "floor to be finite and >= 0"),
        (lambda m: EWC(m).consolidate(Bomb("read"), floor=float("nan")), ">= 0, got nan"),
        (lambda m: EWC(m).consolidate(Bomb("read"), normalize=0.0), r"trace > 0, got 0\.0"),
        (lambda m: EWC(m).consolidate(Bomb("read"), normalize=float("inf")), "trace > 0, got inf"),
        (
            lambda m: EWC(m).consolidate({"body.weight": 1.0, "x": 1.0}),
            "a tensor as the Fisher of 'body.weight', got 1.0",
        ),
        (
            lambda m: EWC(m).consolidate({}),
            r"expected a list of batches.*got a mapping with the keys \[\]",
        ),
        (
            lambda m: EWC(m).consolidate({"input_ids": torch.ones(2, 3), "labels": torch.ones(2)}),
            r"expected a list of batches, or a Fisher keyed by parameter names \(such as "
            r"'body.weight'\); got a mapping with the keys \['input_ids', 'labels'\]",
        ),
    ],
)
def test_bad_arguments_are_refused_before_any_work(act, message):
    with pytest.raises(ValueError, match=message):
        act(make_model())


def test_half_precision_and_gradients_are_accepted():
    model = make_model().float()
    memory = EWC(model, strength=1.0)
    ready = {n: torch.ones_like(p).bfloat16().requires_grad_() for n, p in model.named_parameters()}
    returned = memory.consolidate(ready)
    assert {tensor.dtype for tensor in returned.values()} == {torch.float32}
    assert not any(tensor.requires_grad for tensor in returned.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "sampled"}, "kind='sampled' has no effect on a ready Fisher"),
        ({"likelihood": "gaussian"}, "likelihood='gaussian' has no effect"),
        ({"positions": "sum"}, "positions='sum' has no effect"),
        ({"max_samples": 5}, "max_samples=5 has no effect"),
        ({"generator": torch.Generator()}, "generator=<torch"),
        ({"floor": -1.0}, "floor to be finite and >= 0"),
        ({"normalize": 0.0}, "trace > 0, got 0"),
    ],
)
def test_options_of_a_pass_are_refused(options, message):
    model = make_model()
    memory = EWC(model, strength=1.0)
    ready = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match=message) as caught:
        memory.consolidate(ready, **options)
    assert "\n" not in str(caught.value)
    assert memory.tasks == ()


def test_attached_early_it_pulls_from_the_first_consolidation_until_removed():
    model, twin = make_model(), make_model()
    batch = make_batches(5)[0]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin)]
    memory = EWC(model, strength=100.0)
    memory.attach(optimizers[0])
    gc.collect()  # the handle is gone, the pull is not

    def step():
        one_step(model, optimizers[0], batch)
        one_step(twin, optimizers[1], batch)

    step()
    assert torch.equal(model.body.weight, twin.body.weight)
    memory.consolidate(make_batches(1))
    step()
    assert not torch.equal(model.body.weight, twin.body.weight)


def test_a_removed_pull_no_longer_pulls_and_may_be_attached_again():
    model, twin = make_model(), make_model()
    batch = make_batches(5)[0]
    memory = EWC(model, strength=100.0)
    memory.anchor(1.0)
    move(model, 1)
    move(twin, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = memory.attach(optimizer)
    with pytest.raises(RuntimeError, match=r"already attached to this optimizer; call remove\(\)"):
        memory.attach(optimizer, how="gradient")
    handle.remove()
    handle.remove()
    one_step(model, optimizer, batch)
    one_step(twin, torch.optim.SGD(twin.parameters(), lr=0.1), batch)
    assert torch.equal(model.body.weight, twin.body.weight)
    memory.attach(optimizer)


def test_attach_refuses_strangers():
    memory = EWC(make_model(), strength=1.0)
    stranger = torch.optim.SGD(make_model().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="has none of them"):
        memory.attach(stranger)
    own = torch.optim.SGD(memory._parameters.model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="got how='magic'"):
        memory.attach(own, how="magic")
    memory.attach(own)


def test_without_frees_a_task_from_its_own_pull():
    model = make_model()
    memory = EWC(model, strength=1e9, keep_tasks=True)
    memory.anchor(1.0, task="A")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory.attach(optimizer)
    batch = make_batches(5)[0]
    before = weights(model)
    one_step(model, optimizer, batch)
    torch.testing.assert_close(weights(model), before, rtol=0, atol=1e-8)
    with memory.without("A"):
        one_step(model, optimizer, batch)
    assert not torch.allclose(model.body.weight, before["body.weight"], atol=1e-4)


def grow_head(model, outputs):
    old = model.head
    model.head = nn.Linear(5, outputs).double()
    with torch.no_grad():
        model.head.weight[: old.out_features] = old.weight
        model.head.bias[: old.out_features] = old.bias


@pytest.mark.parametrize("keep_tasks", [False, True])
def test_a_head_that_grows_is_held_on_its_old_part(keep_tasks):
    model = make_model(outputs=2)
    memory = EWC(model, strength=5.0, keep_tasks=keep_tasks)
    move(model, 1)
    f_a, at_a = memory.consolidate(make_batches(1, outputs=2), task="A"), weights(model)
    grow_head(model, 4)

    def old_part(model):
        return {
            name: p[:2] if name.startswith("head") else p for name, p in model.named_parameters()
        }

    def penalty_a():
        old = old_part(model)
        return sum(5.0 / 2 * (f_a[name] * (old[name] - at_a[name]) ** 2).sum() for name in f_a)

    move(model, 2)
    assert_same_pull(model, memory.penalty(), penalty_a())
    f_b, at_b = memory.consolidate(make_batches(2, outputs=4), task="B"), weights(model)
    move(model, 3)
    assert_same_pull(model, memory.penalty(), penalty_a() + equation_3(model, [(f_b, at_b)], 5.0))
    if keep_tasks:
        memory.forget("B")
        assert_same_pull(model, memory.penalty(), penalty_a())


def test_a_grown_head_is_pulled_on_its_old_part_and_trains_on_the_new():
    model = make_model(outputs=2)
    memory = EWC(model, strength=1e12)
    memory.anchor(1.0)
    grow_head(model, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    memory.attach(optimizer)
    before = weights(model)
    one_step(model, optimizer, make_batches(1, outputs=4)[0])
    torch.testing.assert_close(model.head.bias[:2].detach(), before["head.bias"][:2])
    assert not torch.isclose(model.head.bias[2:], before["head.bias"][2:]).any()


def test_a_head_may_grow_while_a_task_is_set_aside():
    model = make_model(outputs=2)
    memory = EWC(model, strength=5.0, keep_tasks=True)
    twin = EWC(model, strength=5.0)
    for task, seed in (("A", 1), ("B", 2)):
        move(model, seed)
        memory.anchor(seed, task=task)
        twin.anchor(seed, task=task)
    with memory.without("A"):
        grow_head(model, 4)
        move(model, 3)
        assert 0 < memory.penalty() < twin.penalty()
    assert_same_pull(model, memory.penalty(), twin.penalty())


def test_a_head_that_shrank_is_named():
    model = make_model(outputs=3)
    memory = EWC(model, strength=1.0)
    memory.anchor(1.0)
    model.head = nn.Linear(5, 2).double()
    with pytest.raises(ValueError, match=r"'head.weight'.*\(3, 5\) to \(2, 5\)"):
        memory.penalty()


def test_parameters_that_appear_later_join_at_the_next_consolidation():
    model = make_model()
    memory = EWC(model, strength=2.0)
    a = learn(memory, model, "A", 1)
    model.add_module("extra", nn.Linear(3, 3).double())
    move(model, 2)
    assert_same_pull(model, memory.penalty(), equation_3(model, [a], 2.0))
    b = learn(memory, model, "B", 3)
    assert "extra.weight" in b[0]
    move(model, 4)
    assert_same_pull(model, memory.penalty(), equation_3(model, [a, b], 2.0))


def test_a_parameter_that_vanished_is_named_unless_it_was_left_out():
    model = make_model()
    memory = EWC(model, strength=1.0)
    trunk = EWC(model, strength=1.0, parameters="!head.*")
    memory.anchor(1.0)
    trunk.anchor(1.0)
    model.head = nn.Identity()
    with pytest.raises(ValueError, match=r"protects 'head\.weight', which the model no longer has"):
        memory.penalty()
    assert trunk.penalty().item() == 0.0


def test_parameters_left_out_are_not_held():
    model = make_model()
    memory = EWC(model, strength=1.0, parameters=iter(["!head.*"]))
    fisher = memory.consolidate(make_batches(1))
    assert list(fisher) == ["body.weight", "body.bias"]
    with torch.no_grad():
        model.head.weight.add_(1.0)
    assert memory.penalty().item() == 0.0


def test_wrapped_models_are_held_under_their_own_names():
    model = make_model()
    memory = EWC(nn.DataParallel(torch.compile(model, backend="eager")), strength=1.0)
    assert "head.bias" in memory.consolidate(make_batches(1))


def test_the_memory_follows_the_model_to_another_type():
    model = make_model().float()
    memory = EWC(model, strength=1.0)
    memory.anchor(1.0)
    model.double()
    move(model, 1)
    assert memory.penalty().dtype == torch.float64
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    memory.attach(optimizer)
    optimizer.step()


def through_pickle(things):
    return pickle.loads(pickle.dumps(things))


COPIES = [copy.deepcopy, through_pickle]


def trained(how="proximal", **options):
    """A model that is pulled by two tasks, and its optimizer and memory."""
    model = make_model()
    optimizer = Adam(model.parameters(), lr=0.01)
    memory = EWC(model, strength=2.0, **options)
    handle = memory.attach(optimizer, how=how)
    for seed, task in enumerate("AB"):
        move(model, seed)
        memory.anchor(1.0 + seed, task=task)
        one_step(model, optimizer, make_batches(seed)[0])
    return model, optimizer, memory, handle


@pytest.mark.parametrize("order", ["model optimizer memory", "memory optimizer model"])
@pytest.mark.parametrize("how", ["proximal", "gradient"])
@pytest.mark.parametrize("through", COPIES)
def test_a_model_an_optimizer_and_a_memory_copied_together_train_on_alike(order, how, through):
    things = dict(zip(("model", "optimizer", "memory", "handle"), trained(how), strict=True))
    names = order.split()
    copied = dict(zip(names, through(tuple(things[name] for name in names)), strict=True))
    gc.collect()
    for each in (things, copied):
        for seed in range(3):
            one_step(each["model"], each["optimizer"], make_batches(seed)[0])
    torch.testing.assert_close(weights(copied["model"]), weights(things["model"]), rtol=0, atol=0)

    # The copies are on their own: what happens to the originals does not touch them.
    things["handle"].remove()
    free = copy.deepcopy(copied["model"].state_dict())
    one_step(copied["model"], copied["optimizer"], make_batches(3)[0])
    pulled = weights(copied["model"])
    things["model"].load_state_dict(free)
    one_step(things["model"], things["optimizer"], make_batches(3)[0])
    assert not torch.equal(pulled["body.weight"], things["model"].body.weight)


@pytest.mark.parametrize("through", COPIES)
def test_a_handle_copied_along_removes_the_pull_of_the_copy(through):
    model, optimizer, memory, handle = through(trained())
    assert handle.attached
    handle.remove()
    twin = make_model()
    twin.load_state_dict(model.state_dict())
    plain = Adam(twin.parameters(), lr=0.01)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, its in ((model, optimizer), (twin, plain)):
        one_step(each, its, make_batches(5)[0])
    assert torch.equal(model.body.weight, twin.body.weight)
    memory.attach(optimizer)


@pytest.mark.parametrize("through", COPIES)
@pytest.mark.parametrize("keep_tasks", [False, True])
def test_a_memory_copied_alone_has_a_model_of_its_own_and_can_be_attached(through, keep_tasks):
    model, optimizer, memory, _ = trained(keep_tasks=keep_tasks)
    copied = through(memory)
    gc.collect()
    assert not copied._attachments
    assert copied.tasks == ("A", "B")
    assert torch.equal(copied.penalty(), memory.penalty())
    move(model, 7)
    assert not torch.equal(copied.penalty(), memory.penalty())
    with pytest.raises(ValueError, match="has none of them"):
        copied.attach(optimizer)
    its_own = SGD(copied._parameters.model.parameters(), lr=0.1)
    copied.attach(its_own)
    before = copied.penalty().item()
    its_own.step()
    assert copied.penalty().item() < before


@pytest.mark.parametrize("through", COPIES)
def test_a_copy_made_within_without_has_all_tasks(through):
    _, _, memory, _ = trained(keep_tasks=True)
    with memory.without("A"):
        copied = through(memory)
        less = memory.penalty()
    assert torch.equal(copied.penalty(), memory.penalty())
    assert less < copied.penalty()


def test_several_memories_on_one_optimizer_are_copied_with_it():
    model, optimizer, memory, _ = trained()
    second = EWC(model, strength=5.0)
    second.anchor(1.0)
    second.attach(optimizer)
    copied = copy.deepcopy((model, optimizer, memory, second))
    for each in ((model, optimizer), copied):
        one_step(each[0], each[1], make_batches(3)[0])
    assert torch.equal(model.body.weight, copied[0].body.weight)
