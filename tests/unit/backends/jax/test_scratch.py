"""What kernels on a CPU take for themselves, read from a compiled program."""

from __future__ import annotations

from legroom.backends.jax.device.scratch import scratch_bytes

LIBRARY = """
%fused_computation (param_0: f32[64,96,96,3], param_1: f32[3,3,3,32]) -> f32[64,96,96,32] {
  %param_0 = f32[64,96,96,3]{3,2,1,0} parameter(0)
  %param_1 = f32[3,3,3,32]{3,2,1,0} parameter(1)
  ROOT %conv = f32[64,96,96,32]{3,2,1,0} convolution(%param_0, %param_1), window={size=3x3 \
pad=1_1x1_1}, dim_labels=b01f_01io->b01f
}
"""
ENTRY = """
ENTRY %main.1 (x.1: f32[64,96,96,3], w.1: f32[3,3,3,32]) -> f32[64,96,96,32] {
  %x.1 = f32[64,96,96,3]{3,2,1,0} parameter(0)
  %w.1 = f32[3,3,3,32]{3,2,1,0} parameter(1)
"""
CONVOLUTION = """  %conv.2 = f32[64,96,96,32]{3,2,1,0} convolution(%x.1, %w.1), \
window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
"""
WINDOWS = 64 * 96 * 96 * (3 * 3 * 3) * 4


def test_a_convolution_lays_its_windows_side_by_side() -> None:
    assert scratch_bytes(f"{ENTRY}{CONVOLUTION}}}\n") == WINDOWS


def test_groups_are_laid_out_each() -> None:
    grouped = CONVOLUTION.replace("->b01f", "->b01f, feature_group_count=2")
    assert scratch_bytes(f"{ENTRY}{grouped}}}\n") == 2 * WINDOWS


def test_two_run_at_once() -> None:
    assert scratch_bytes(f"{ENTRY}{CONVOLUTION * 3}}}\n") == 2 * WINDOWS


def test_a_product_packs_what_is_multiplied() -> None:
    product = "  %dot.1 = bf16[64,64]{1,0} dot(%x.2, %x.2), lhs_contracting_dims={1}\n"
    known = "  %x.2 = bf16[64,500]{1,0} parameter(2)\n"
    assert scratch_bytes(f"{ENTRY}{known}{product}}}\n") == 2 * 64 * 500 * 2


def test_those_of_the_library_that_raises_are_not_counted() -> None:
    fusion = """  ROOT %ynn_fusion = f32[64,96,96,32]{3,2,1,0} fusion(%x.1, %w.1), kind=kCustom, \
calls=%fused_computation, backend_config={"fusion_config":{"kind":"__ynn_fusion"}}
"""
    assert scratch_bytes(f"{LIBRARY}{ENTRY}{fusion}}}\n") == 0


def test_other_programs_take_nothing() -> None:
    assert scratch_bytes("") == 0
    assert scratch_bytes("ENTRY %main () -> f32[] {\n  ROOT %c = f32[] constant(0)\n}\n") == 0
