# ruff: noqa: E501  (messages are as long as they are)
"""Messages of the same families that are in no collection: other versions, devices, units, wraps.

Each takes a known wording and changes what people's logs change: the device, the version's way to
print sizes, what a library wraps around it, where it was cut, how it was coloured and broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from legroom.messages import Diagnosis, diagnose_text

Compare = Callable[[Diagnosis, dict[str, Any]], dict[str, tuple[Any, Any]]]
MIB, GIB = 2**20, 2**30
JOB = "/job:localhost/replica:0/task:0/device:"
OOM = f"OOM when allocating tensor with shape[8,32,32,16] and type float on {JOB}GPU:0 by allocator GPU_0_bfc"
OOM_FACTS = {
    "is_oom": True, "fatal": True, "framework": "tensorflow", "where": "device",
    "device": "GPU:0", "requested_bytes": 8 * 32 * 32 * 16 * 4, "shape": [8, 32, 32, 16],
    "dtype": "float32",
}  # fmt: skip


def case(text: str, **expected: Any) -> Any:
    return pytest.param(text, expected, id=text.strip()[:60])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Other devices and places.
        case(OOM.replace("GPU:0", "GPU:7").replace("GPU_0", "GPU_7"), device="GPU:7"),
        case(OOM.replace("localhost/replica:0/task:0", "worker/replica:0/task:3"), device="GPU:0"),
        case(OOM.replace(f"{JOB}GPU:0", "/gpu:1").replace("GPU_0", "GPU_1"), device="GPU:1"),
        case(OOM.replace("GPU:0", "XLA_GPU:2").replace("GPU_0_bfc", "xla"), device="GPU:2"),
        case(OOM.replace("GPU:0", "TPU:5").replace("GPU_0_bfc", "TPU_5_bfc"), device="TPU:5"),
        case(OOM.replace("GPU:0", "DML:0").replace("GPU_0_bfc", "DmlAllocator"), device="DML:0"),
        case(
            OOM.replace("GPU:0", "CPU:0").replace("GPU_0_bfc", "cpu"), device="CPU:0", where="host"
        ),
        case(OOM.replace("GPU_0_bfc", "gpu_host_bfc"), where="host"),
        case(
            f"Allocator (gpu_host_bfc) ran out of memory trying to allocate 1.00GiB (rounded to {GIB})",
            where="host", requested_bytes=GIB,
        ),
        # Other types.
        case(OOM.replace("float", "half"), dtype="float16", requested_bytes=8 * 32 * 32 * 16 * 2),
        case(OOM.replace("float", "double"), dtype="float64", requested_bytes=8 * 32 * 32 * 16 * 8),
        case(OOM.replace("float", "bfloat16"), dtype="bfloat16", requested_bytes=262144),
        case(OOM.replace("float", "bool"), dtype="bool", requested_bytes=131072),
        case(OOM.replace("float", "variant"), dtype="variant", requested_bytes=None),
        case(OOM.replace("float", "something"), dtype=None, requested_bytes=None),
        # Other sizes.
        case(OOM.replace("8,32,32,16", ""), shape=[], requested_bytes=4),
        case(OOM.replace("8,32,32,16", "7"), shape=[7], requested_bytes=28),
        case(OOM.replace("8,32,32,16", "?,32"), shape=None, requested_bytes=None, is_oom=True),
        case(OOM.replace("8,32,32,16", "9" * 30), shape=None, requested_bytes=None, is_oom=True),
        case(OOM.replace("8,32,32,16", "9999999999,9999999999"), requested_bytes=None),
        # XLA under TensorFlow and under JAX differ by what stands around.
        case("Out of memory while trying to allocate 16.00TiB. [Op:__inference_h_9]",
             framework="tensorflow", requested_bytes=2**44, op=None, device=None),
        case("Out of memory while trying to allocate 16.00TiB.", framework="jax"),
        # Cut in the middle, at both ends.
        case(OOM[:30], is_oom=True, shape=None, requested_bytes=None, device=None),
        case(OOM[:46], is_oom=True, shape=None, requested_bytes=None, device=None),
        case(OOM[:72], is_oom=True, shape=[8, 32, 32, 16], dtype="float32", device=None),
        case(OOM[14:], **OOM_FACTS),
        case("memory trying to allocate 34.10MiB (rounded to 35758080)requested by op a/b/Mul",
             is_oom=True, requested_bytes=35758080, op="a/b/Mul", device=None),
        case("Tried to allocate 1.70 GiB. GPU 3 has a total capacty of 6.00 GiB of which 0 by",
             is_oom=True, framework="torch", device="GPU:3", limit_bytes=6 * GIB),
        case("CUDA out of memory. Tried to alloc", is_oom=True, framework="torch"),
        case("while trying to allocate 4770354232 bytes.", is_oom=True, requested_bytes=4770354232),
        case("MemoryError: Unable to allocate 201. GiB for an array with sh",
             is_oom=True, framework="numpy", requested_bytes=201 * GIB, shape=None),
        case("Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.02GiB with freed_by_count=0. The caller indi",
             is_oom=True, fatal=False),
        case("Allocator (GPU_0_bfc) ran out of memory trying to allocate 34.10",
             is_oom=True, requested_bytes=None, device="GPU:0"),
        case("Allocator (GPU_0_bfc) ran out of memory trying to allocate 34.10MiB (rounded to 3575",
             is_oom=True, requested_bytes=int(34.1 * MIB)),
        case("Out of memory while trying to allocate 47703542", is_oom=True, requested_bytes=None),
        case("Unable to allocate 201", is_oom=False),
        # Sizes in other units.
        case("Allocator (GPU_0_bfc) ran out of memory trying to allocate 512.0KiB.", requested_bytes=512 * 1024),
        case("Allocator (GPU_0_bfc) ran out of memory trying to allocate 768B.", requested_bytes=768),
        case("Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.50TiB.", requested_bytes=3 * 2**39),
        case("Out of memory while trying to allocate 13.43GiB.", requested_bytes=int(13.43 * GIB)),
        case("Out of memory while trying to allocate 512.00MiB with allocator GPU_1_bfc on device 1.",
             requested_bytes=512 * MIB, device="GPU:1"),
        case("CUDA out of memory. Tried to allocate 20 bytes. GPU 0 has a total capacity of 14.56 GiB",
             requested_bytes=20),
        case("CUDA out of memory. Tried to allocate 1536.00 KiB (GPU 11; 7.93 GiB total capacity)",
             requested_bytes=1536 * 1024, device="GPU:11"),
        case("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3.00 MiB for an array with shape (1024, 1024, 3) and data type uint8",
             framework="numpy", requested_bytes=3 * MIB, dtype="uint8", where="host", device=None),
        case("MemoryError: Unable to allocate 8.00 TiB for an array with shape (1099511627776,) and data type int64",
             shape=[1099511627776], requested_bytes=2**43),
        case("MemoryError: Unable to allocate 74.5 GiB for an array with shape (100000, 100000) and data type object",
             dtype="object", requested_bytes=int(74.5 * GIB)),
        # Other makers' devices.
        case("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 63.98 GiB of which 1.50 GiB is free. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.",
             framework="torch", device="GPU:1", in_use_bytes=60 * GIB, fragmented=False),
        case("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity; 57.12 GiB already allocated; 57.12 GiB current active; 1.20 GiB free; 58.57 GiB reserved in total by PyTorch)",
             framework="torch", device="NPU:0", in_use_bytes=int(57.12 * GIB), fragmented=False),
        case("torch.OutOfMemoryError: XPU out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total capacity of 15.91 GiB.",
             framework="torch", device="GPU:0"),
        # Wrapped by other libraries.
        case(f"ray.exceptions.RayTaskError(ResourceExhaustedError): ray::train() (pid=71)\n  File 'x.py'\n{OOM}", **OOM_FACTS),
        case(f"lightning.fabric.utilities.exceptions.MisconfigurationException: failed: {OOM} [Op:Conv2D]", op="Conv2D", **OOM_FACTS),
        case(f'{{"log":"ERROR {OOM}\\n","stream":"stderr","time":"2024-01-01T00:00:00Z"}}', **OOM_FACTS),
        case(f"> > {OOM}\n> > \t [[{{{{node model/conv2d_3/Conv2D}}}}]]", op="model/conv2d_3/Conv2D", layer="conv2d_3", **OOM_FACTS),
        case(f"E       tensorflow.python.framework.errors_impl.ResourceExhaustedError: {OOM}", **OOM_FACTS),
        case(f"Exception encountered when calling layer 'block1_conv2' (type Conv2D).\n\n{OOM} [Op:Conv2D]", layer="block1_conv2", **OOM_FACTS),
        case(f'Exception encountered when calling layer "block1_conv2" "                 f"(type Conv2D).\n\n{OOM} [Op:Conv2D]', layer="block1_conv2", **OOM_FACTS),
        case("RuntimeError: Exception encountered when calling Dense.call().\n\n\x1b[1mCUDA out of memory. Tried to allocate 2.00 GiB.\x1b[0m", layer="Dense", framework="torch"),
        # Coloured, carriage-returned, broken by a window's edge.
        case("\x1b[31m" + OOM.replace("tensor", "\x1b[1mtensor\x1b[0m") + "\x1b[0m", **OOM_FACTS),
        case("9/10 [===>.] - ETA: 3s\r10/10 [====] - loss: 0.1\r" + OOM, **OOM_FACTS),
        case("Resource exhausted: Out \nof memory while trying to allocate 5520758552 bytes.", requested_bytes=5520758552),
        case(OOM[:60] + "\n" + OOM[60:], is_oom=True),
        case("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB. GPU 0 has a total capacity\nof 14.56 GiB of which 155.81 MiB is free. Of the allocated memory 11.79\n  GiB is allocated by PyTorch, and 1.49 GiB is reserved by PyTorch but unallocated.",
             requested_bytes=int(1.53 * GIB), limit_bytes=int(14.56 * GIB), in_use_bytes=int(11.79 * GIB), fragmented=False),
        case("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate\n4770354232 bytes.", requested_bytes=4770354232),
        # A node in every dress.
        case(OOM + "\n\t [[node a/b/Conv2D (defined at train.py:3) ]]", op="a/b/Conv2D"),
        case(OOM + "\n\t [[{{node a/b/Conv2D}}]]", op="a/b/Conv2D"),
        case(OOM + "\n\t [[{{function_node __inference_f_1}}{{node a/b/Conv2D}}]]", op="a/b/Conv2D"),
        case(OOM + "\n\t [[{{node a/b/Conv2D}} = Conv2D[T=DT_FLOAT](x)]]", op="a/b/Conv2D"),
        case(OOM + " [Op:__inference_train_function_99]", op=None),
        case(OOM + "\n\t [[{{node StatefulPartitionedCall}}]]", op=None),
        case("Detected at node 'model/conv2d/Conv2D' defined at (most recent call last):\n" + "  File x\n" * 40 + "Node: 'model/conv2d/Conv2D'\n" + OOM, op="model/conv2d/Conv2D", layer="conv2d"),
        case("Detected at node model/conv2d/Conv2D defined at (most recent call last):\n<stack>\n" + OOM, op="model/conv2d/Conv2D"),
        case(f"{{{{function_node __wrapped__AddV2_device_{JOB}GPU:0}}}} failed to allocate memory [Op:AddV2]", device="GPU:0", op="AddV2", is_oom=True),
        # Killed, in all shells.
        case("./run.sh: line 7: 31337 Killed                  python train.py --epochs 3\n", is_oom=True, fatal=True),
        case("[2]    4242 killed     python train.py", is_oom=True),
        case("Epoch 3/10\nKilled\n$ ", is_oom=True, framework="system", where="host", device=None),
        case("command terminated with exit code 137", is_oom=True),
        case("container exited with code 137", is_oom=True),
        case("##[error]Process completed with exit code 137.", is_oom=True),
        case("Exit Code: 139", is_oom=None, fatal=True),
        case("train.py exited with status 134", is_oom=None, fatal=True),
        # Not memory, whatever it says.
        case("exit code 1", is_oom=False, fatal=False),
        case("exit code 1370", is_oom=False),
        case("exit code -90", is_oom=False),
        case("process finished with exit code 0", is_oom=False),
        case("Process finished with exit code 143 (interrupted by signal 15: SIGTERM)", is_oom=False),
        case("The skilled worker Killed it on stage today", is_oom=False),
        case("12 jobs were killed by the scheduler for walltime", is_oom=False),
        case("GPU memory: 3456 MiB allocated, 4096 MiB reserved", is_oom=False),
        case("Hint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom", is_oom=False),
        case("epoch 3: memory 5.1 GiB of memory in use, 0 failures", is_oom=False),
        case("Rate Limit:  500 per hour", is_oom=False, limit_bytes=None),
        case("", is_oom=False, fatal=False, framework=None, where=None, story="Nothing in this text says that memory ran out."),
        case("OOMKilled: false", is_oom=False),
        case('"OOMKilled": false, "Dead": false', is_oom=False),
        case('"OOMKilled": true, "Dead": false', is_oom=True),
    ],
)  # fmt: skip
def test_variant(text: str, expected: dict[str, Any], differences: Compare) -> None:
    assert not differences(diagnose_text(text), expected)
