"""A model without softmax as an ONNX file, and that file in onnxruntime.

    python examples/export_onnx.py [FOLDER]

Needs: pip install '.[onnx]'
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import onnx
import onnxruntime
import torch

import flashpoint
from flashpoint.convert import export_onnx, export_pt2


def main(folder: Path) -> None:
    """Write the files, then show what is in them and what they compute."""
    torch.manual_seed(0)
    model = flashpoint.create_model(
        "vit", image_size=32, patch_size=8, width=64, depth=2, num_heads=4, attention="relu4/sum"
    )
    torch.nn.init.normal_(model.head.weight)  # a new head is zero, and so were its logits

    # The example of the inputs is made from the model's config; other modules want one.
    made = export_onnx(model, folder / "vit.onnx")
    print(f"{made.path.name}: {made.num_bytes:,} bytes, {made.max_difference:.0e} from PyTorch")

    nodes = Counter(node.op_type for node in onnx.load(made.path).graph.node)
    chosen = ("MatMul", "Relu", "Pow", "Mul", "Div", "Softmax")
    print("nodes:", ", ".join(f"{name} {nodes[name]}" for name in chosen))

    session = onnxruntime.InferenceSession(made.path)
    for batch in (1, 5):  # any number of images
        images = torch.randn(batch, 3, 32, 32)
        (logits,) = session.run(None, {"images": images.numpy()})
        with torch.no_grad():
            same = torch.allclose(torch.from_numpy(logits), model(images), atol=1e-4)
        print(f"{batch} images: logits {logits.shape}, as PyTorch's: {same}")

    program = export_pt2(model, folder / "vit.pt2")
    print(f"{program.path.name}: torch.export.load reads it, without Flashpoint")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
