#!/bin/sh
# check_wheel.sh PYTHON WHEEL: install a wheel where nothing is but Debian and Python, no
# compiler and no headers, and train there. PYTHON downloads torch. The root is a temporary
# folder; a machine that cannot make one is told so, and nothing fails.
set -eu
python=$1 wheel=$2
if [ "$(id -u)" != 0 ] || ! command -v mmdebstrap >/dev/null; then
    echo "the wheel was not tried in a bare root: that takes root and mmdebstrap"
    exit 0
fi

root=$(mktemp -d)
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT
trap 'exit 1' INT TERM
mmdebstrap --quiet --variant=minbase --include=python3,python3-venv bookworm "$root"
mount -t proc proc "$root/proc"

mkdir "$root/wheels"
cp "$wheel" "$root/wheels"
"$python" -m pip download --quiet --disable-pip-version-check --dest "$root/wheels" \
    --constraint constraints.txt torch

cat >"$root/train.py" <<'END'
import json
import shutil

import torch
from torch import nn

import pai_torchacc as ptac

assert not shutil.which("cc") and not shutil.which("gcc")
ptac.enable()
net = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                    nn.Linear(32 * 13 * 13, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    loss = nn.functional.cross_entropy(net(torch.randn(64, 1, 28, 28)),
                                       torch.randint(0, 10, (64,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(ptac.report())
served = json.loads(ptac.report("json"))["ops"]
assert served["max_pool2d"]["accelerated"] == 3, served
ptac.disable()
END

bare() { chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root "$@"; }
bare python3 -m venv /venv
bare /venv/bin/pip install --quiet --no-index --find-links /wheels pai_torchacc
bare /venv/bin/python /train.py
bare /venv/bin/python -m pai_torchacc env
echo "the wheel works in a bare root"
