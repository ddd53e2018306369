"""Run the examples as a user does, and check that they learn."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets

from tests.support import scripts
from tests.support.helpers import ROOT, run_script

sys.path.insert(0, str(ROOT / "examples"))
import mnist_data


def run_example(name: str, *options: str, processes: int = 1) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU", **scripts.server_variables()}
    command = [*scripts.PYTHON, str(ROOT / "examples" / name), *options]
    if processes > 1:
        torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone", "--no-python"]
        command = [*scripts.PYTHON, *torchrun, *command]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("script", ["train_mnist.py", "train_mp_mnist.py"])
def test_mnist_on_two_devices(script: str, tmp_path: Path) -> None:
    out = run_example(script, "--num_cores=2", "--num_epochs=3", "--target_accuracy=0.9", f"--datadir={tmp_path}")
    epochs = re.findall(r"epoch (\d): digits, loss [\d.]+, test accuracy [\d.]+, [\d,]+ images/s", out)
    assert epochs == ["1", "2", "3"]


def test_mnist_over_a_mesh(tmp_path: Path) -> None:
    out = run_example(
        "train_spmd.py", "--num_cores=4", "--num_epochs=3", "--target_accuracy=0.9", f"--datadir={tmp_path}"
    )
    assert len(re.findall(r"CPU \d, \d", out)) == 2 and "epoch 3: digits" in out


def test_imagenet_with_synthetic_images() -> None:
    out = run_example(
        "train_imagenet.py", "--fake_data", "--steps=2", "--batch_size=2", "--image_size=32", "--layers=18"
    )
    assert re.search(r"loss [\d.]+ to [\d.]+ in 2 steps, [\d.]+ images/s", out)


def test_llama_resumes_on_another_mesh(tmp_path: Path) -> None:
    """Train on one device; then resume from the first checkpoint, with two processes of two devices each and scan.

    The last losses are equal.
    """
    sizes = (
        "--steps=4",
        "--batch_size=4",
        "--length=16",
        "--save_every=2",
        "--generate=4",
        f"--checkpoints={tmp_path}",
    )
    whole = re.search(r"tiny: 4 steps, loss ([\d.]+)", run_example("train_llama.py", *sizes))
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == ["2", "4"]
    shutil.rmtree(tmp_path / "4")
    text = run_example("train_llama.py", *sizes, "--mesh=1x2x2", "--scan", processes=2)
    again = re.search(r"tiny: 4 steps, loss ([\d.]+)", text)
    assert text.count("steps, loss") == 1
    assert whole is not None and again is not None
    assert float(again[1]) == pytest.approx(float(whole[1]), abs=2e-3)


#: Trains the Llama, and kills the process at a random moment of a step if requested.
TRAINED = """
import os, random, signal, sys, threading
sys.path.insert(0, "examples")
import train_llama

sys.argv = ["train_llama.py", *os.environ["OPTIONS"].split()]
plain, kill_at = train_llama.Trainer.train_step, int(os.environ.get("KILL_AT", -1))

def train_step(self):
    if self.step == kill_at:
        moment = random.Random(kill_at).random() / 20
        threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return plain(self)

train_llama.Trainer.train_step = train_step
train_llama.main()
"""


@pytest.mark.sweep  # parallel/test_large_models.py kills a job while it saves, at the step that is most likely to fail
@pytest.mark.parametrize("kills", [1, 10])
def test_llama_killed_at_random_steps(kills: int, tmp_path: Path) -> None:
    """It ends with the loss of an uninterrupted run, to the last printed digit."""
    steps, cache = 16 * kills, str(tmp_path / "programs")
    sizes = f"--steps={steps} --batch_size=2 --length=8 --save_every=2 --generate=0 --warmup=4"

    def run(name: str, **env: str) -> tuple[int, list[str]]:
        options = f"{sizes} --checkpoints={tmp_path / name}"
        done = run_script(TRAINED, False, OPTIONS=options, PJRT_DEVICE="CPU", XLA_PERSISTENT_CACHE_PATH=cache, **env)
        assert done.returncode in (0, -9), done.stderr[-4000:]
        return done.returncode, re.findall(rf"tiny: {steps} steps, loss [\d.]+", done.stdout)

    whole = run("whole")
    assert whole[0] == 0 and len(whole[1]) == 1
    for step in sorted(random.sample(range(3, steps - 8), kills)):
        assert run("killed", KILL_AT=str(step)) == (-9, [])
    assert run("killed") == whole


PEAK = """
import math, sys
sys.path.insert(0, "examples")
import torch_xla, train_llama
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

mesh = {mesh}
train_llama.PRESETS["wide"] = train_llama.Config(width=256, layers=2, heads=4, key_heads=4, hidden=704)
options = train_llama.parse(["--preset=wide", "--batch_size=4", "--length=8", "--steps=2"])
options.mesh = mesh
if mesh:
    xr.use_spmd()
trainer = train_llama.Trainer(options)
weights = sum(p.nbytes for p in trainer.model.parameters())
losses = [trainer.train_step().item() for _ in range(2)]
print(weights, xm.get_memory_info()["peak_bytes_used"], *losses)
"""


def test_llama_memory_per_device_on_eight_devices() -> None:
    """On 4 x 2 devices, the peak is at most 0.4 of weights, gradients and optimizer states; the losses are equal.

    Both run XLA's own kernels: programs over several devices use no others, and ATen's kernels need less memory.
    """
    alone, spread = (
        [float(word) for word in run_script(
            PEAK.format(mesh=mesh), PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(count), TORCH_XLA_CPU_KERNELS="0",
            TF_CPP_MIN_LOG_LEVEL="2",  # XLA of jax 0.12 warns that it replicates updates of the embedding's gradient
        ).stdout.split()]
        for mesh, count in ((None, 1), ((1, 4, 2), 8))
    )  # fmt: skip
    state = 4 * alone[0]  # weights, gradients, and two states of the optimizer
    assert alone[1] > state
    assert spread[1] <= 0.4 * state, f"{spread[1]:,.0f} of {state:,.0f} bytes"
    assert spread[2:] == pytest.approx(alone[2:], abs=2e-3)


def test_jax_function_in_model() -> None:
    out = run_example("jax_in_torch.py", "--steps=200", "--target_error=0.4")
    losses = [float(loss) for loss in re.findall(r"step \d+: .* ([\d.]+)", out)]
    assert len(losses) == 2 and losses[1] < 0.01
    assert re.search(r"mean error of the spring [\d.]+ \(range 0.5 to 3.5\), of the friction [\d.]+", out)


def test_saving_and_serving(tmp_path: Path) -> None:
    """Saved by this package, served by a process that imports neither it nor torch."""
    folder = tmp_path / "digits.stablehlo"
    out = run_example("serve_stablehlo.py", "save", str(folder))
    accuracy = re.search(r"test accuracy ([\d.]+)", out)
    assert accuracy is not None and float(accuracy[1]) > 0.85
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    script = str(ROOT / "examples" / "serve_stablehlo.py")
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", script, "serve", str(folder), "--port=0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"},
    ) as serving:  # fmt: skip
        assert serving.stdout is not None and serving.stderr is not None
        address = serving.stdout.readline().strip()
        for count in (5, 32):
            with urllib.request.urlopen(address, json.dumps((images[:count] / 16).tolist()).encode()) as answer:
                found = json.load(answer)
            assert np.mean(np.array(found["digits"]) == labels[:count]) > 0.8 and len(found["chances"]) == count
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address, b"[[1, 2]]")
        assert "rows of 64 numbers, got an array of shape (1, 2)" in refused.value.read().decode()
        refused.value.close()
        serving.terminate()
        imported = set(re.findall(r"\| +([\w.]+)$", serving.stderr.read(), re.MULTILINE))
    assert "jax" in imported and not {"torch", "torch_xla"} & imported


def test_files_of_mnist(tmp_path: Path) -> None:
    images = np.arange(3 * 28 * 28, dtype=np.uint8).reshape(3, 28, 28)
    labels = np.array([7, 1, 9], np.uint8)
    for name, array in zip(mnist_data._FILES, (images, labels, images[:1], labels[:1]), strict=True):
        head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
        with gzip.open(tmp_path / f"{name}.gz", "wb") as file:
            file.write(head + array.tobytes())
    train, test, name = mnist_data.datasets(str(tmp_path))
    assert name == "MNIST" and len(train) == 3 and len(test) == 1
    assert (train.tensors[0][:, 0].numpy() * 255).round().astype(np.uint8).tolist() == images.tolist()
    assert train.tensors[1].tolist() == [7, 1, 9]
