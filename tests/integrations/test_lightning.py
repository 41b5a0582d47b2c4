"""The callback for Lightning, tried with Lightning."""

import pytest
import torch
from torch import nn

import pai_torchacc as ptac

lightning = pytest.importorskip("lightning", reason="lightning is not installed")
from pai_torchacc.integrations.lightning import AccelerationCallback  # noqa: E402


class Net(lightning.LightningModule):
    def __init__(self, fails: bool = False):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
                                 nn.Flatten(), nn.Linear(32 * 13 * 13, 10))  # fmt: skip
        self.fails, self.was_on = fails, []

    def training_step(self, batch, index):
        if self.fails:
            raise KeyError("mine")
        self.was_on.append(ptac.is_enabled("operator_fusion"))
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, index):
        self.was_on.append(ptac.is_enabled("operator_fusion"))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader():
    data = torch.utils.data.TensorDataset(
        torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))
    )
    return torch.utils.data.DataLoader(data, batch_size=8)


def trainer(callback, tmp_path):
    return lightning.Trainer(
        callbacks=[callback], max_epochs=1, logger=False, accelerator="cpu",
        enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip


def test_fit_is_accelerated_reported_and_restored(tmp_path) -> None:
    ptac.disable()
    shown: list[str] = []
    callback = AccelerationCallback(numerics="close", report=shown.append)
    net, runner = Net(), trainer(callback, tmp_path)
    runner.fit(net, loader())
    assert net.was_on == [True] * 4
    assert len(shown) == 1
    assert "sgd_step" in shown[0]
    assert not ptac.is_enabled("operator_fusion")
    runner.validate(net, loader(), verbose=False)
    assert net.was_on == [True] * 8
    assert len(shown) == 1
    assert not ptac.is_enabled("operator_fusion")


def test_what_was_on_stays_on(tmp_path) -> None:
    with ptac.enable_memory_pool():
        trainer(AccelerationCallback(report=False), tmp_path).fit(Net(), loader())
        assert ptac.is_enabled("memory_pool")
        assert not ptac.is_enabled("operator_fusion")


def test_an_exception_restores(tmp_path) -> None:
    ptac.disable()
    with pytest.raises(KeyError, match="mine"):
        trainer(AccelerationCallback(), tmp_path).fit(Net(fails=True), loader())
    assert not ptac.is_enabled("operator_fusion")
