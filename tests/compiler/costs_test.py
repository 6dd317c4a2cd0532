"""Bytes that a program moves, compared with counts by hand."""

from dape_jax.compiler.costs import program_costs

_LOOP = """
%cond (p: (s32[], f32[10,4])) -> pred[] {
  %p = (s32[], f32[10,4]) parameter(0)
  %limit = s32[] constant(10)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%take_row (stack: f32[10,4], i: s32[]) -> f32[1,4] {
  %stack = f32[10,4]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %row = f32[1,4]{1,0} dynamic-slice(%stack, %i), dynamic_slice_sizes={1,4}
  ROOT %twice = f32[1,4]{1,0} add(%row, %row)
}

%body (p: (s32[], f32[10,4])) -> (s32[], f32[10,4]) {
  %p = (s32[], f32[10,4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %stack = f32[10,4]{1,0} get-tuple-element(%p), index=1
  %row = f32[1,4]{1,0} fusion(%stack, %i), kind=kLoop, calls=%take_row
  %all = f32[8,4]{1,0:S(1)} all-gather(%row), channel_id=1, replica_groups=[2,8]<=[16], dimensions={0}
  ROOT %next = (s32[], f32[10,4]) tuple(%i, %stack)
}

ENTRY %main (x: f32[10,4]) -> (s32[], f32[10,4]) {
  %x = f32[10,4]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[10,4]) tuple(%zero, %x)
  %sum = f32[100]{0} all-reduce(%x), channel_id=2, replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %loop = (s32[], f32[10,4]) while(%start), condition=%cond, body=%body
}
"""


def test_loops_count_iterations_and_slices_their_part():
  costs = program_costs(_LOOP)
  # Each iteration reads a row and an index and writes a row; the all-gather reads the
  # row and writes to VMEM. The all-reduce runs once.
  assert costs.memory == 10 * ((16 + 4 + 16) + 16) + (160 + 400)
  # The all-gather sends 7/8 ten times, the all-reduce of 2 chips 2 * 1/2 once.
  assert costs.sent == {"all-gather": 10 * 112, "all-reduce": 400}
  assert not costs.has_unknown_loops


def test_pieces_of_one_overlapped_collective_count_once():
  pieces = _LOOP.replace(
      "  ROOT %next",
      "  %again = f32[8,4]{1,0} all-gather(%row), channel_id=1,"
      " replica_groups=[2,8]<=[16], dimensions={0}\n  ROOT %next",
  )
  assert program_costs(pieces).sent["all-gather"] == 10 * 112


def test_data_dependent_loop_counts_once_and_is_reported():
  unknown = _LOOP.replace("constant(10)", "get-tuple-element(%p), index=0")
  costs = program_costs(unknown)
  assert costs.has_unknown_loops
  assert costs.sent["all-gather"] == 112


def test_copies_between_memories_count_main_memory_only():
  costs = program_costs("""
ENTRY %main (x: f32[10,4]) -> f32[2,4] {
  %x = f32[10,4]{1,0} parameter(0)
  %c = (f32[10,4]{1,0}, f32[10,4]{1,0:S(1)}, u32[]{:S(2)}) copy-start(%x)
  %d = f32[10,4]{1,0:S(1)} copy-done(%c)
  %s = ((f32[10,4]{1,0}), f32[2,4]{1,0:S(1)}, s32[]{:S(2)}) slice-start(%x), slice={[0:2], [0:4]}
  %e = f32[2,4]{1,0:S(1)} slice-done(%s)
  %v = f32[1,4]{1,0:S(1)} slice(%d), slice={[0:1], [0:4]}
  ROOT %r = f32[2,4]{1,0} add(%e, %e)
}
""")
  # The whole of x to VMEM, two rows of it to VMEM, and two rows written.
  assert costs.memory == 160 + 32 + 32


def test_asynchronous_collectives_send_their_result():
  costs = program_costs("""
ENTRY %main (x: f32[10]) -> f32[10] {
  %x = f32[10]{0} parameter(0)
  %s = (f32[10]{0}, f32[40]{0:S(1)}) all-gather-start(%x), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
  %g = f32[40]{0:S(1)} all-gather-done(%s)
  %p = (f32[10]{0}, f32[10]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%x), channel_id=2, source_target_pairs={{0,1},{1,0}}
  ROOT %q = f32[10]{0} collective-permute-done(%p)
}
""")
  assert costs.sent == {"all-gather": 120, "collective-permute": 40}
