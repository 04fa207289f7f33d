"""Loads weights with NaN in the final norm into the running server at a port. The model on the disk stays as it is."""

import json
import shutil
import struct
import sys
import urllib.request
from pathlib import Path

GOOD, SPOILED = Path("/srv/models/glm4moe"), Path("/srv/spoiled")
NAN = b"\xc0\x7f"  # as bfloat16

shutil.rmtree(SPOILED, ignore_errors=True)
shutil.copytree(GOOD, SPOILED)
for path in SPOILED.glob("*.safetensors"):
    content = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    found = json.loads(content[8 : 8 + length]).get("model.norm.weight")
    if found:
        begin = 8 + length + found["data_offsets"][0]
        content[begin : begin + 2] = NAN
        path.write_bytes(content)
for path in [SPOILED, *SPOILED.iterdir()]:
    path.chmod(0o755 if path.is_dir() else 0o644)
request = urllib.request.Request(
    f"http://127.0.0.1:{sys.argv[1]}/update_weights_from_disk",
    data=json.dumps({"model_path": str(SPOILED)}).encode(),
    headers={"Content-Type": "application/json"},
)
with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
    sys.exit(0 if json.load(answer)["success"] else "the server did not take them")
