"""Libraries beside the three large ones: a model of each on xla does what it does on the CPU."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_xla
from tests.clients import checks, tiny_trainers


def steps(model: nn.Module, loss_of: Callable[[], torch.Tensor], count: int = 4) -> list[float]:
    """The losses of a few plain steps."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(count):
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()
        losses.append(loss.item())
    return losses


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def rows(count: int = 32) -> TensorDataset:
    torch.manual_seed(1)
    x = torch.randn(count, 8)
    return TensorDataset(x, (x[:, 0] > 0).long())


def test_peft(tmp_path: Path) -> None:
    """LoRA: only the adapters learn; they are saved, loaded, and merged."""
    peft = checks.library("peft")
    words = torch.arange(24).reshape(2, 12)
    there, here = tiny_trainers.adapted(), tiny_trainers.adapted().to("xla")
    with checks.on_xla(here) as moved:
        losses = steps(here, lambda: here(input_ids=words.to("xla"), labels=words.to("xla")).loss)
    checks.assert_close(losses, steps(there, lambda: there(input_ids=words, labels=words).loss))
    assert losses[-1] < losses[0] and moved.compilations <= 4
    here.save_pretrained(tmp_path)  # type: ignore[operator]
    assert (tmp_path / "adapter_model.safetensors").exists()
    loaded = peft.PeftModel.from_pretrained(tiny_trainers.llama(), tmp_path)  # type: ignore[operator]
    expected = there(words).logits
    checks.assert_close([loaded.to("xla")(words.to("xla")).logits], [expected], rtol=1e-3, atol=1e-4)
    checks.assert_close([here.merge_and_unload()(words.to("xla")).logits], [expected], rtol=1e-3, atol=1e-4)  # type: ignore[operator]


def test_diffusers() -> None:
    """A UNet learns to take noise away, and a pipeline makes a picture with it."""
    diffusers = checks.library("diffusers")

    def unet() -> nn.Module:
        torch.manual_seed(0)
        return diffusers.UNet2DModel(  # type: ignore[no-any-return]
            sample_size=8, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=8,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )  # fmt: skip

    def picture(model: nn.Module) -> Any:
        pipeline = diffusers.DDPMPipeline(model, scheduler)
        pipeline.set_progress_bar_config(disable=True)
        return pipeline(num_inference_steps=3, generator=torch.Generator().manual_seed(0), output_type="np").images

    scheduler = diffusers.DDPMScheduler(num_train_timesteps=10)
    torch.manual_seed(1)
    image, noise, times = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8), torch.tensor([1, 5])
    noisy = scheduler.add_noise(image, noise, times)

    def loss_on(model: nn.Module, device: str) -> torch.Tensor:
        found = model(noisy.to(device), times.to(device)).sample
        return nn.functional.mse_loss(found, noise.to(device))

    there, here = unet(), unet().to("xla")
    with checks.on_xla(here):
        losses = steps(here, lambda: loss_on(here, "xla"), 3)
        made = picture(here)
    checks.assert_close(losses, steps(there, lambda: loss_on(there, "cpu"), 3), rtol=1e-3)
    checks.assert_close([torch.from_numpy(made)], [torch.from_numpy(picture(there))], atol=1e-3)


@pytest.mark.filterwarnings("ignore:torch_xla. aten::")  # the table says which
@pytest.mark.filterwarnings("ignore:torch_xla. x.mask. at")
@pytest.mark.parametrize("name", tiny_trainers.METRICS)
def test_torchmetrics(name: str) -> None:
    metrics = checks.library("torchmetrics")
    options, on_the_cpu = tiny_trainers.METRICS[name]
    torch.manual_seed(0)
    if options:
        batches = [(torch.randn(16, 5).softmax(-1), torch.arange(16) % 5) for _ in range(2)]
    else:
        batches = [(torch.randn(16), torch.randn(16)) for _ in range(2)]
    there, here = getattr(metrics, name)(**options), getattr(metrics, name)(**options).to("xla")
    with checks.counts() as moved:
        for found, wanted in batches:
            here.update(found.to("xla"), wanted.to("xla"))
            there.update(found, wanted)
        result = here.compute()
    assert result.device.type == "xla" and moved.fallbacks <= on_the_cpu
    checks.assert_close([result], [there.compute()])


def test_ignite() -> None:
    engine, metrics = checks.library("ignite.engine"), checks.library("ignite.metrics")
    model, loader = network().to("xla"), DataLoader(rows(), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    losses: list[float] = []
    with checks.on_xla(model):
        trainer = engine.create_supervised_trainer(model, optimizer, criterion, device="xla")
        trainer.add_event_handler(engine.Events.ITERATION_COMPLETED, lambda run: losses.append(run.state.output))
        trainer.run(loader, max_epochs=2)
        wanted = {"accuracy": metrics.Accuracy(), "loss": metrics.Loss(criterion)}
        evaluator = engine.create_supervised_evaluator(model, metrics=wanted, device="xla")
        evaluator.run(loader)
    oracle = network()
    expected = checks.replay(
        oracle, list(loader) * 2, torch.optim.SGD(oracle.parameters(), lr=0.1), lambda b: criterion(oracle(b[0]), b[1])
    )
    checks.assert_close(losses, expected)
    x, y = rows().tensors
    checks.assert_close(
        [evaluator.state.metrics["accuracy"], evaluator.state.metrics["loss"]],
        [(oracle(x).argmax(-1) == y).float().mean(), criterion(oracle(x), y)],
    )


@pytest.mark.parametrize("workers", [2, 4])
def test_ignite_among_several(workers: int) -> None:
    """Losses and metrics of all ranks together are those of one with all rows."""
    checks.library("ignite")
    from tests.clients import ignite_program as same

    (told,) = checks.program("ignite_program", str(workers), devices=workers)
    oracle, criterion = same.network(), nn.CrossEntropyLoss()
    batches = list(DataLoader(same.data(), batch_size=same.BATCH)) * same.EPOCHS
    optimizer = torch.optim.SGD(oracle.parameters(), lr=same.RATE)
    losses = checks.replay(oracle, batches, optimizer, lambda b: criterion(oracle(b[0]), b[1]))
    checks.assert_close(told["losses"], losses)
    x, y = same.data().tensors
    found = oracle(x)
    checks.assert_close(
        [told["metrics"]["accuracy"], told["metrics"]["loss"]],
        [(found.argmax(-1) == y).float().mean(), criterion(found, y)],
    )
    assert told["ranks"] == list(range(workers)) and told["devices"] == ["xla"]


@pytest.mark.filterwarnings("ignore:torch_xla. no torch_xla.sync")  # skorch calls none
def test_skorch(tmp_path: Path) -> None:
    skorch = checks.library("skorch")
    x, y = (t.numpy() for t in rows(64).tensors)

    def fitted(device: str) -> Any:
        torch.manual_seed(0)
        net = skorch.NeuralNetClassifier(
            network(), criterion=nn.CrossEntropyLoss, max_epochs=3, lr=0.5, device=device, verbose=0, train_split=None
        )
        return net.fit(x, y)

    with checks.on_xla():
        here = fitted("xla")
    there = fitted("cpu")
    checks.assert_lives_on_xla(here.module_)
    checks.assert_close(here.history[:, "train_loss"], there.history[:, "train_loss"])
    here.save_params(f_params=tmp_path / "parameters.pt")
    here.load_params(f_params=tmp_path / "parameters.pt")
    again = pickle.loads(pickle.dumps(here))
    checks.assert_lives_on_xla(again.module_)
    assert (again.predict(x) == there.predict(x)).all() and here.score(x, y) == there.score(x, y)


def test_safetensors(tmp_path: Path) -> None:
    st = checks.library("safetensors.torch")
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    expected = copy.deepcopy(model.state_dict())
    model.to("xla")
    st.save_model(model, tmp_path / "model.safetensors")
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert st.load_model(model, tmp_path / "model.safetensors") == (set(), [])
    assert model[1].weight is model[0].weight
    checks.assert_lives_on_xla(model)
    checks.assert_close(model.state_dict().values(), expected.values(), rtol=0, atol=0)
    on_xla = st.load_file(tmp_path / "model.safetensors", device="xla")
    assert {value.device for value in on_xla.values()} == {torch.device("xla:0")}
    with pytest.raises(RuntimeError, match="share memory"):
        st.save_file(model.state_dict(), tmp_path / "tied.safetensors")


def test_tensorboard(tmp_path: Path) -> None:
    checks.library("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    x = torch.arange(12.0, device="xla")
    with SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("sum", x.sum(), 1)
        writer.add_histogram("values", x, 1)
        writer.add_image("image", x.reshape(3, 2, 2) / 12, 1)
        writer.add_graph(nn.Linear(12, 2).to("xla"), x)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert found.Scalars("sum")[0].value == 66.0
    assert found.Histograms("values")[0].histogram_value.num == 12


def kept_batches(trainer: Any) -> list[Any]:
    """What the trainer's collator is going to give, on the CPU."""
    batches: list[Any] = []

    class Keeping(type(trainer.data_collator)):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            batch = super().__call__(*args, **kwargs)
            batches.append({name: value.clone() for name, value in batch.items() if isinstance(value, torch.Tensor)})
            return batch

    trainer.data_collator.__class__ = Keeping
    return batches


def test_sentence_transformers(tmp_path: Path) -> None:
    """Sentences as vectors, and the library's own Trainer."""
    losses_of = checks.library("sentence_transformers.losses")
    tiny_trainers.save_bert(tmp_path)
    here, there = (tiny_trainers.sentence_transformer(tmp_path, device) for device in ("xla", "cpu"))
    with checks.on_xla(here):
        found = here.encode(["w1 w2 w3", "w4 w5"], convert_to_tensor=True)
    checks.assert_close([found], [there.encode(["w1 w2 w3", "w4 w5"], convert_to_tensor=True)])
    trainer = tiny_trainers.sentences(tmp_path, here, max_steps=6)
    batches = kept_batches(trainer)
    with checks.on_xla(here):
        trainer.train()
    losses = tiny_trainers.losses_of(trainer)
    assert losses[-1] < losses[0]

    criterion = losses_of.MultipleNegativesRankingLoss(there.train())
    columns = lambda batch, side: {n.removeprefix(f"{side}_"): v for n, v in batch.items() if n.startswith(f"{side}_")}
    optimizer = torch.optim.AdamW(there.parameters(), lr=1e-3, weight_decay=0.0)
    loss_of = lambda batch: criterion([columns(batch, "a"), columns(batch, "b")], None)
    checks.assert_close(losses, checks.replay(there, batches[:6], optimizer, loss_of, clip=1.0), rtol=1e-3)


def test_trl(tmp_path: Path) -> None:
    """SFT of a tiny Llama."""
    trainer, oracle = (
        tiny_trainers.sft(tmp_path, max_steps=5, per_device_train_batch_size=4),
        tiny_trainers.llama().train(),
    )
    batches = kept_batches(trainer)
    with checks.on_xla(trainer.model):
        trainer.train()
    losses = tiny_trainers.losses_of(trainer)
    assert losses[-1] < losses[0] - 0.2
    optimizer = torch.optim.AdamW(oracle.parameters(), lr=5e-3, weight_decay=0.0)
    expected = checks.replay(oracle, batches[:5], optimizer, lambda batch: oracle(**batch).loss, clip=1.0)
    checks.assert_close(losses, expected, rtol=1e-3)


@pytest.mark.filterwarnings("ignore:torch_xla. x.mask. at")  # edges are chosen by masks: loops are found so
@pytest.mark.parametrize("name", ["GCNConv", "GATConv", "SAGEConv", "GINConv"])
def test_torch_geometric(name: str) -> None:
    geometric = checks.library("torch_geometric.nn")
    edges = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
    torch.manual_seed(0)
    x, classes = torch.randn(4, 8), torch.tensor([0, 1, 0, 1])
    there = geometric.GINConv(nn.Linear(8, 2)) if name == "GINConv" else getattr(geometric, name)(8, 2)
    here = copy.deepcopy(there).to("xla")

    def loss_on(model: nn.Module, device: str) -> torch.Tensor:
        return nn.functional.cross_entropy(model(x.to(device), edges.to(device)), classes.to(device))

    with checks.counts() as moved:
        losses = steps(here, lambda: loss_on(here, "xla"))
    assert moved.fallbacks == ({"aten::index.Tensor"} if name in ("GCNConv", "GATConv") else set())
    checks.assert_close(losses, steps(there, lambda: loss_on(there, "cpu")))
    checks.assert_lives_on_xla(here)
    pooled = geometric.global_mean_pool(x.to("xla"), torch.tensor([0, 0, 1, 1], device="xla"))
    checks.assert_close([pooled], [x.reshape(2, 2, 8).mean(1)])
