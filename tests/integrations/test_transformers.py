"""The callback for transformers, tried with its Trainer."""

import pytest
import torch
from torch import nn

import pai_torchacc as ptac

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed"
)
pytest.importorskip("accelerate", reason="accelerate is not installed")
from pai_torchacc.integrations.transformers import AccelerationCallback  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
        self.was_on = []

    def forward(self, x, labels):
        self.was_on.append(ptac.is_enabled("operator_fusion"))
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_training_is_accelerated_reported_and_restored(tmp_path) -> None:
    ptac.disable()
    rows = [{"x": torch.randn(32), "labels": torch.tensor(i % 4)} for i in range(32)]
    shown: list[str] = []
    net = Net()
    trainer = transformers.Trainer(
        model=net,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path), num_train_epochs=1, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True, per_device_train_batch_size=8,
        ),
        train_dataset=rows,
        callbacks=[AccelerationCallback(report=shown.append)],
    )  # fmt: skip
    trainer.train()
    assert net.was_on == [True] * 4
    assert not ptac.is_enabled("operator_fusion")
    assert len(shown) == 1
    assert "accelerated: " in shown[0]
