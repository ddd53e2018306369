"""Save a trained model as StableHLO, and serve it with jax in an environment without torch.

python examples/serve_stablehlo.py save digits.stablehlo        trains for a minute and saves
python examples/serve_stablehlo.py serve digits.stablehlo       http://127.0.0.1:8000: POST images, get digits
curl --data '[[...64 numbers from 0 to 1...]]' http://127.0.0.1:8000

The server imports only numpy and jax, and accepts batches of any size. It is a demonstration, not a production server.
"""

from __future__ import annotations

import argparse
import http.server
import json
from pathlib import Path
from typing import Any


def save(folder: Path, epochs: int) -> None:
    """Train a network on scikit-learn's digits, on xla, and export its program with a dynamic batch size."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    import torch_xla
    from torch_xla.stablehlo import save_as_stablehlo

    images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(epochs):
        for rows in torch.randperm(1500).split(100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows].to("xla")), labels[rows].to("xla")).backward()
            optimizer.step()
            torch_xla.sync()
    model = nn.Sequential(model, nn.Softmax(dim=1)).cpu().eval()
    right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
    print(f"test accuracy {right:.3f}")
    batch = {0: torch.export.Dim("batch")}
    save_as_stablehlo(torch.export.export(model, (images[:2],), dynamic_shapes=(batch,)), folder)
    print(f"{folder}: {', '.join(sorted(str(p.relative_to(folder)) for p in folder.rglob('*') if p.is_file()))}")


class Model:
    """A StableHLO folder as a function of numpy arrays, which jax runs on its default device."""

    def __init__(self, folder: Path) -> None:
        import jax
        import numpy as np

        jax.config.update("jax_enable_x64", True)  # programs use torch's 64-bit dtypes
        meta = json.loads((folder / "functions" / "forward.meta").read_text())
        program = jax.export.deserialize(bytearray((folder / "functions" / "forward.jax").read_bytes()))
        self._places = meta["input_locations"]
        self._held = {
            place["name"]: jax.device_put(np.load(folder / "data" / place["name"]))
            for place in self._places
            if place["type_"]["value"] == "parameter"
        }
        self._call = jax.jit(program.call)

    def __call__(self, *arguments: Any) -> list[Any]:
        """Run the program and return its results."""
        held = self._held
        inputs = [held[p["name"]] if p["name"] in held else arguments[p["position"]] for p in self._places]
        return list(self._call(*inputs))


def server(folder: Path, port: int) -> http.server.HTTPServer:
    """Return a server that answers a POST of images (JSON) with digits and probabilities. Port 0: any free port."""
    import numpy as np

    model = Model(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                images = np.array(json.loads(self.rfile.read(int(self.headers["Content-Length"]))), np.float32)
                if images.ndim != 2 or images.shape[1] != 64:
                    raise ValueError(f"expected images as rows of 64 numbers, got an array of shape {images.shape}")
                (chances,) = model(images)
                answer = {"digits": chances.argmax(1).tolist(), "chances": chances.max(1).round(3).tolist()}
                self._answer(200, answer)
            except ValueError as error:
                self._answer(400, {"error": str(error)})

        def _answer(self, code: int, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return http.server.HTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("save", "serve"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--port", type=int, default=8000, help="0: any free port")
    options = parser.parse_args()
    if options.what == "save":
        save(options.folder, options.epochs)
        return
    with server(options.folder, options.port) as serving:
        print(f"http://127.0.0.1:{serving.server_port}", flush=True)
        serving.serve_forever()


if __name__ == "__main__":
    main()
