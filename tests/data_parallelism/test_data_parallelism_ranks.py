"""Ranks of Gloo on loopback: what they train is what one process trains by stock.

Bounds: gradients of a first step within 1e-6 of their norm, losses within 1e-5. The
sums are the same in another order, so float32 leaves about 1e-7.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import launched as ranks
import pytest

HERE = Path(__file__).parent

DIVIDED = {
    "mean_loss": 50,
    "sum_loss": 12,
    "contrastive_loss": 12,
    "penalty_on_parameters": 12,
    "accumulation": 12,
    "tied_unused_frozen": 12,
    "experts": 12,
    "rare_parameters": 12,
    "many_buckets": 12,
    "transformer": 12,
    "lstm_with_batch_second": 7,
    "convolution": 12,
    "own_sampler": 4,
    "own_batches": 6,
    "stream_with_workers": 4,
    "two_models_and_penalty": 14,
    "two_backwards": 7,
    "checkpoint_that_does_not": 12,
    "all_switches": 12,
    "results_changed_in_place": 7,
    "forces": 12,
}
"""Programs whose every call is divided, and how many there are."""

WHOLE = {
    "batch_norm": "BatchNorm1d takes its statistics over the batch",
    "across_samples": "outputs differ by",
    "statistic_in_a_buffer": "buffers differ by",
    "checkpoint_that_reenters": "gradients differ by",
    "loss_inside": "no row for each of its batch's",
    "own_scatter": "its class has a scatter() of its own",
    "loss_in_an_attribute": "KeepingLoss.kept keeps a result of the call",
    "penalty_in_an_attribute": "KeepingPenalty.kept keeps a result of the call",
    "number_in_an_attribute": "attributes differ by",
    "hook_in_the_model": "Linear has a hook",
    "parameter_of_others": "it learns a tensor that is none of its parameters",
    "argument_in_place": "it changes its arguments in place",
}
"""Programs that dividing would change, and what is said of them."""

ON_FOUR = (
    "mean_loss", "sum_loss", "tied_unused_frozen", "two_models_and_penalty",
    "batch_norm", "few_rows", "dropout", "script_with_a_sampler_of_ranks",
)  # fmt: skip
"""What four ranks run, which have one core or less each."""

BOTH: list[Any] = [(2, name) for name in DIVIDED]
FOUR = pytest.param(4, marks=pytest.mark.long)
BOTH += [
    pytest.param(4, name, marks=pytest.mark.long) for name in DIVIDED if name in ON_FOUR
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of a program on so many ranks: what each has written, in their order."""

    @cache
    def run(n: int) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp("ranks")
        names = ON_FOUR if n > 2 else ()
        done = ranks.together(n, HERE / "run_programs.py", str(folder), *names)
        assert done.returncode == 0, done.stderr
        return ranks.results(folder, n)

    def of(n: int, name: str | None = None) -> list[dict[str, Any]]:
        if name is None:
            return run(n)
        shown = [result[name] for result in run(n)]
        assert not any("traceback" in entry for entry in shown), shown
        return shown

    return of


@pytest.mark.parametrize(("n", "name"), BOTH)
def test_divided_trains_as_one_process(found: Any, n: int, name: str) -> None:
    shown = found(n, name)
    for entry in shown:
        assert set(entry["divided"]) <= {DIVIDED[name]}
        assert entry["divided"] and not entry["whole"]
        assert entry["gradients"] <= 1e-6
        assert entry["losses"] <= 1e-5
        assert entry["parameters"] <= 1e-5
    assert all(entry["last"] == shown[0]["last"] for entry in shown), "bit for bit"
    assert all(entry["next"] == shown[0]["next"] for entry in shown), "random numbers"


@pytest.mark.parametrize("name", WHOLE)
def test_what_dividing_would_change_is_computed_whole(found: Any, name: str) -> None:
    """Stock's bits then, and the reason where people look."""
    for entry in found(2, name):
        assert entry["divided"] == [0] and sum(entry["whole"].values()) > 0
        assert entry["losses"] == entry["gradients"] == entry["parameters"] == 0
        assert WHOLE[name] in entry["text"], entry["text"]
        assert "(ddp): whole: " in entry["text"]
    assert WHOLE[name] in "".join(found(2, name)[0]["warned"])
    assert not found(2, name)[1]["warned"]


@pytest.mark.parametrize("n", [2, FOUR])
def test_batch_norm_on_more_ranks(found: Any, n: int) -> None:
    assert all(entry["divided"] == [0] for entry in found(n, "batch_norm"))


@pytest.mark.parametrize("n", [2, FOUR])
def test_few_rows_are_not_divided(found: Any, n: int) -> None:
    """A last batch of one, one row a rank: some models squeeze them."""
    for entry in found(n, "few_rows"):
        assert entry["divided"] == [1]
        assert entry["whole"] == {"fewer than 2 rows a process": 2}
        assert entry["losses"] <= 1e-5 and entry["gradients"] <= 1e-6


@pytest.mark.parametrize("n", [2, FOUR])
def test_a_sampler_of_the_scripts_own_divides(found: Any, n: int) -> None:
    """Then the numbers are those of DistributedDataParallel on the same shares."""
    shown = found(n, "script_with_a_sampler_of_ranks")
    for entry in shown:
        assert entry["gradients"] <= 1e-6 and entry["losses"] <= 1e-5
        assert entry["orders_are_the_scripts"]
        assert "set_epoch" in entry["advice"][0]
        assert "the script's DistributedSampler divides" in entry["text"]
    assert shown[0]["losses_shown"] != shown[1]["losses_shown"], "the shares differ"


def test_ranks_that_use_no_parameter_hold_no_other_up(found: Any) -> None:
    for entry in found(2, "rare_parameters_with_a_sampler_of_ranks"):
        assert entry["parameters"] <= 1e-6
        assert "the script's DistributedSampler divides" in entry["text"]


@pytest.mark.parametrize("n", [2, FOUR])
def test_dropout_draws_other_numbers_on_each_rank(found: Any, n: int) -> None:
    shown = found(n, "dropout")
    for entry in shown:
        assert entry["divided"] == 5
        assert entry["shares_differ"] == n and entry["steps_differ"] == 5
        assert 0.4 < entry["kept"] < 0.6
    assert all(entry["next"] == shown[0]["next"] for entry in shown)


def test_evaluation_is_divided(found: Any) -> None:
    for entry in found(2, "evaluation"):
        assert entry["outputs"] <= 1e-6
        assert entry["divided"] == 3 and entry["inferred"]
        assert entry["needs_gradient"] == [False, True]


def test_nested_arguments_and_results(found: Any) -> None:
    for entry in found(2, "nested_arguments"):
        assert entry["divided"] == 1
        assert entry["outputs"] <= 1e-6
        assert entry["classes"] and entry["none"]
        assert entry["constant"] == [True, False]


def test_copies_and_checkpoints_are_stocks(found: Any) -> None:
    for entry in found(2, "saved_and_copied"):
        assert entry["keys"] == entry["stock_keys"]
        assert all(key.startswith("module.") for key in entry["keys"])
        assert all(entry["classes"]) and entry["attributes"]
        assert entry["device_ids"] == [] and entry["module"] == "Sequential"
        assert entry["outputs"] <= 1e-6


def test_all_begin_with_the_numbers_of_rank_0(found: Any) -> None:
    for entry in found(2, "other_numbers_at_first"):
        assert entry == {"weights": True, "draws": True}


def test_other_batches_are_found_out(found: Any) -> None:
    for rank, entry in enumerate(found(2, "other_batches")):
        assert entry["gradients"] == 0
        assert entry["refusal"].startswith("the processes were given different batches")
        assert len(entry["warned"]) == (rank == 0)
        assert "different batches" in entry["error"]
        assert "different batches" in entry["error_of_order"]


def test_a_share_that_fails_is_computed_whole(found: Any) -> None:
    """A model may refuse some rows alone; what it says of all is the user's to see."""
    for entry in found(2, "failing_shares"):
        assert entry["divided"] == [0] and entry["losses"] == 0
        assert entry["errors"] == ["no large number"] * 2
    for entry in found(2, "later_failing_shares"):
        assert entry["divided"] == [2] and sum(entry["whole"].values()) == 1
        assert entry["losses"] <= 1e-5


def test_a_thawed_layer_is_judged_anew(found: Any) -> None:
    for entry in found(2, "thawed"):
        assert entry["divided"] == [3]
        [(reason, n)] = entry["whole"].items()
        assert n == 4 and "BatchNorm1d" in reason
        assert entry["losses"] <= 1e-5 and entry["gradients"] <= 1e-6


def test_a_sampler_may_come_after_a_warm_up(found: Any) -> None:
    for entry in found(2, "sampler_after_a_warm_up"):
        assert entry["gradients"] <= 1e-6
        assert "the script's DistributedSampler divides" in entry["text"]


def test_a_mistake_in_the_first_call_is_forgotten(found: Any) -> None:
    for entry in found(2, "mistakes_at_first"):
        assert "cannot be multiplied" in entry["errors"][0]
        assert entry["divided"] == 1 and entry["warned"] == 0


def test_arguments_of_two_sizes_are_computed_whole(found: Any) -> None:
    for rank, entry in enumerate(found(2, "two_sizes")):
        assert entry["divided"] == [0] and entry["losses"] == 0
        assert entry["whole"] == {
            "its arguments have different sizes in dimension 0": 7
        }
        assert len(entry["warned"]) == (rank == 0)


def test_a_wrapper_in_a_wrapper_divides_once(found: Any) -> None:
    for entry in found(2, "wrapper_in_a_wrapper"):
        assert entry["divided"] == [0, 7] and not entry["warned"]
        assert entry["losses"] <= 1e-5 and entry["gradients"] <= 1e-6


def test_a_rank_in_another_mode_is_found_out(found: Any) -> None:
    for entry in found(2, "other_modes"):
        assert len(entry["errors"]) == 2
        assert all("a model in different modes" in text for text in entry["errors"])


def test_on_and_off(found: Any) -> None:
    for entry in found(2, "on_and_off"):
        assert entry["twice"] and entry["changed"] and entry["restored"]
        assert entry["gradients"] <= 1e-6, "of a step that was divided while it was on"
        assert entry["again"]["divided"] == [1]
        assert entry["group"], "it stays until the process ends"


def test_a_group_may_be_made_anew(found: Any) -> None:
    for entry in found(2, "group_made_anew"):
        assert entry == {"same": [True, True], "divided": [1, 1, 1]}


def test_auto_only_says_what_ddp_would_do(found: Any) -> None:
    for entry in found(2, "told_by_auto"):
        assert entry["is_stock"] and entry["decision"] == "stock"
        assert "each of 2 processes trains by itself" in entry["text"]
        assert "mode='ddp' would divide" in entry["text"]


def test_every_program_is_looked_at(found: Any) -> None:
    names = {*DIVIDED, *WHOLE, *ON_FOUR}
    names |= {
        "evaluation",
        "nested_arguments",
        "saved_and_copied",
        "on_and_off",
        "thawed",
    }
    names |= {"other_numbers_at_first", "other_batches", "told_by_auto"}
    names |= {"failing_shares", "later_failing_shares", "sampler_after_a_warm_up"}
    names |= {"mistakes_at_first", "two_sizes", "wrapper_in_a_wrapper", "other_modes"}
    names |= {"group_made_anew", "rare_parameters_with_a_sampler_of_ranks"}
    assert set(found(2)[0]) == names
