"""What stands around a failure and tells more of it: nodes, layers, dumps, buffer lists.

Details are looked for near a failure only, since most of them mean nothing by themselves.
"""

from __future__ import annotations

import dataclasses
import re

from legroom.messages.reading.sizes import SIZE

__all__ = ["DETAILS", "Detail"]


@dataclasses.dataclass(frozen=True, slots=True)
class Detail:
    """One kind of detail: what it is, a text that it begins with, and how to read it.

    Attributes:
        name: What it is.
        key: The text.
        regex: Begins with the key.
        most: How many are read in one block.
    """

    name: str
    key: str
    regex: re.Pattern[str]
    most: int = 32


_NODE = (
    r"(?:\{\{function_node [^{}]{0,400}\}\} ?)?"
    r"(?:\{\{node (?P<op>[^{}\s]{1,400})\}\}|[Nn]ode:? (?P<name>[^\s=\]{}]{1,400}))"
    r"(?: \(defined at [^\n]{0,300}?\))?"
    r"(?: {1,3}= (?P<op_kind>\w{1,60})\[(?P<attributes>[^\n]{0,2000}))?"
)
_POINTER = r"(?:0x)?[0-9a-fA-F]{1,20}"
_LAYER = r"[^'\"\n\\]{1,120}"

DETAILS = (
    # --- TensorFlow: which op -----------------------------------------------------------------
    Detail("node", "[[", re.compile(rf"\[\[{_NODE}")),
    Detail("op", "[Op:", re.compile(r"\[Op:(?P<op>[^\s\]]{1,400})\]")),
    Detail("op", "etected at node", re.compile(r"etected at node '?(?P<op>[^\s',]{1,400})")),
    Detail("op", "aused by op '", re.compile(r"aused by op '(?P<op>[^\s']{1,400})'")),
    Detail(
        "op",
        "riginal stack trace for '",
        re.compile(r"riginal stack trace for '(?P<op>[^\s']{1,400})'"),
    ),
    Detail(
        "wrapped",
        "__wrapped__",
        re.compile(r"__wrapped__(?P<op>\w{1,100}?)_device_(?P<device>/job:[^\s;,}]{1,200})\}\}"),
    ),
    # --- Keras: which layer -------------------------------------------------------------------
    Detail(
        "layer",
        "xception encountered when calling",
        re.compile(
            rf"xception encountered when calling (?:layer \\?['\"](?P<layer>{_LAYER})\\?['\"]|"
            r"(?P<cls>[A-Za-z_]\w{0,80})\.call\(\))"
        ),
    ),
    Detail(
        "argument",
        "Tensor(shape=",
        re.compile(
            r"Tensor\(shape=(?:torch\.Size\(\[|\()(?P<shape>[0-9, ]{1,200})(?:\]\)|\)), "
            r"dtype=(?P<dtype>[\w.]{1,30})"
        ),
    ),
    # --- the BFC allocator's dump -------------------------------------------------------------
    Detail(
        "dump",
        "BFCAllocator dump for ",
        re.compile(r"BFCAllocator dump for (?P<allocator>\S{1,80})"),
    ),
    Detail(
        "bin",
        "Bin (",
        re.compile(
            r"Bin \((?P<bin>[0-9]{1,12})\):\s{1,20}Total Chunks: (?P<chunks>[0-9]{1,12}), "
            rf"Chunks in use: [0-9]{{1,12}}\.? (?P<allocated>{SIZE}) allocated for chunks\. "
            rf"(?:{SIZE} client-requested for chunks\. )?(?P<in_use>{SIZE}) in use in bin"
        ),
    ),
    Detail(
        "free_chunk",
        "Free ",
        re.compile(
            rf"Free {{1,2}}at {_POINTER}(?: next [0-9]{{1,20}})? of size (?P<size>[0-9]{{1,20}})"
        ),
        most=4096,
    ),
    Detail(
        "used_chunk",
        "InUse at ",
        re.compile(
            rf"InUse at {_POINTER}(?: next [0-9]{{1,20}})? of size (?P<size>[0-9]{{1,20}}) "
            r"by op (?P<op>\S{1,300})"
        ),
        most=4096,
    ),
    Detail(
        "chunks",
        "Chunks of size ",
        re.compile(rf"Chunks of size (?P<size>[0-9]{{1,20}}) totalling (?P<total>{SIZE})"),
        most=4096,
    ),
    Detail(
        "sum",
        "Sum Total of in-use chunks: ",
        re.compile(rf"Sum Total of in-use chunks: (?P<in_use>{SIZE})"),
    ),
    Detail(
        "pool",
        "memory_limit_: ",
        re.compile(
            rf"memory_limit_: (?P<limit>{SIZE}) available (?:bytes|size): (?P<available>{SIZE})"
        ),
    ),
    Detail("limit", "Limit: ", re.compile(rf"Limit: {{2,60}}(?P<size>{SIZE})")),
    Detail("in_use", "InUse: ", re.compile(rf"InUse: (?<!MaxInUse: ) {{1,60}}(?P<size>{SIZE})")),
    Detail(
        "largest", "LargestFreeBlock: ", re.compile(rf"LargestFreeBlock: {{2,60}}(?P<size>{SIZE})")
    ),
    Detail(
        "bar",
        "allocator.cc:",
        re.compile(r"allocator\.cc:[0-9]{1,6}\] (?P<bar>[*_x]{20,200})(?=\s|$)"),
    ),
    # --- XLA's buffers ------------------------------------------------------------------------
    Detail(
        "buffer",
        "Size: ",
        re.compile(
            rf"Size: (?P<size>{SIZE})(?:\s{{1,60}}Operator: (?P<operator>[^\n]{{0,600}}))?"
            r"(?:\s{1,60}XLA Label: (?P<label>[^\n]{0,60}))?"
            r"(?:\s{1,60}(?:Entry Parameter Subs|S)hape: (?P<shape>[^\n]{0,100}))?"
        ),
    ),
    Detail(
        "assigned",
        " allocation: ",
        re.compile(rf" allocation: {{1,40}}(?P<size>{SIZE})"),
    ),
    Detail(
        "fragmentation",
        "total fragmentation: ",
        re.compile(rf"total fragmentation: {{1,40}}(?P<size>{SIZE})"),
    ),
    Detail("hbm", "Total hbm usage", re.compile(rf"Total hbm usage >= (?P<size>{SIZE})")),
    Detail(
        "hlo_temp",
        "HLO temp ",
        re.compile(
            rf"HLO temp {{1,30}}(?P<size>{SIZE})"
            rf"(?:[^\n]{{0,120}}?% fragmentation \((?P<fragmentation>{SIZE})\))?"
        ),
    ),
    # --- the kernel ---------------------------------------------------------------------------
    Detail(
        "cgroup",
        "memory: usage ",
        re.compile(rf"memory: usage (?P<in_use>{SIZE}), limit (?P<limit>{SIZE})"),
    ),
)
