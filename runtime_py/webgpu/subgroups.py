"""Whether eight neighbours of a workgroup should read for each other, asked of the device itself.

Adapters tell the least size of a subgroup, if at all, and no specification says which invocations
are in one together. A wrong guess would be a wrong picture, so a kernel looks.

It pays where subgroups are just eight wide, on CPUs: there it takes the place of seven reads. On a
GPU whose subgroups were 32 wide a UNet took 13 % longer so: its caches give the same row to many
for nothing, and passing values around is what costs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import wgpu

THREADS = 64
LOOK = f"""
@group(0) @binding(0) var<storage, read_write> seen: array<u32>;
@compute @workgroup_size({THREADS})
fn main(@builtin(local_invocation_index) index: u32, @builtin(subgroup_invocation_id) lane: u32,
        @builtin(subgroup_size) size: u32) {{
  seen[{THREADS * 8}u + index] = size;
  let eight = lane & 0xfffffff8u;
  for (var i = 0u; i < 8u; i++) {{
    seen[index * 8u + i] = subgroupShuffle(index, eight + i);
  }}
}}
"""


def shares_rows(device: Any) -> bool:
    """True where subgroups are of eight, and everyone sees those of its own row in order."""
    if "subgroup" not in device.features:
        return False
    size = THREADS * 9 * 4
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffer = device.create_buffer(size=size, usage=usage)
    try:
        pipeline = device.create_compute_pipeline(
            layout="auto",
            compute={"module": device.create_shader_module(code=LOOK), "entry_point": "main"},
        )
        group = device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0),
            entries=[{"binding": 0, "resource": {"buffer": buffer, "offset": 0, "size": size}}],
        )
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(1)
        compute.end()
        device.queue.submit([encoder.finish()])
        seen = np.frombuffer(device.queue.read_buffer(buffer), np.uint32)
    except wgpu.GPUError:
        return False
    finally:
        buffer.destroy()
    index = np.arange(THREADS)[:, None]
    rows, sizes = seen[: THREADS * 8].reshape(-1, 8), seen[THREADS * 8 :]
    return bool((rows == index // 8 * 8 + np.arange(8)).all() and (sizes == 8).all())
