// Whether eight neighbours of a workgroup should read for each other, asked of the device itself;
// see runtime_py/webgpu/subgroups.py for why.

/** @typedef {import("./gpu.js").Gpu} Gpu */

/** Chrome wants it before such a shader; the plans, which wgpu runs too, leave it out. */
export const ENABLE = "enable subgroups;\n";
const THREADS = 64;
const WIDE = 8;
const LOOK = `${ENABLE}
@group(0) @binding(0) var<storage, read_write> seen: array<u32>;
@compute @workgroup_size(${THREADS})
fn main(@builtin(local_invocation_index) index: u32, @builtin(subgroup_invocation_id) lane: u32,
        @builtin(subgroup_size) size: u32) {
  seen[${THREADS * WIDE}u + index] = size;
  let eight = lane & 0xfffffff8u;
  for (var i = 0u; i < ${WIDE}u; i++) {
    seen[index * ${WIDE}u + i] = subgroupShuffle(index, eight + i);
  }
}
`;

/**
 * True where subgroups are of eight, and everyone sees those of its own row in order.
 *
 * @param {Gpu} gpu
 */
export async function sharesRows({ device }) {
  if (!device.features.has("subgroups")) return false;
  const size = THREADS * (WIDE + 1) * 4;
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC;
  const buffer = device.createBuffer({ size, usage });
  const copy = device.createBuffer({
    size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
  });
  try {
    const pipeline = await device.createComputePipelineAsync({
      layout: "auto",
      compute: { module: device.createShaderModule({ code: LOOK }), entryPoint: "main" },
    });
    const group = device.createBindGroup({
      layout: pipeline.getBindGroupLayout(0),
      entries: [{ binding: 0, resource: { buffer } }],
    });
    const encoder = device.createCommandEncoder();
    const compute = encoder.beginComputePass();
    compute.setPipeline(pipeline);
    compute.setBindGroup(0, group);
    compute.dispatchWorkgroups(1);
    compute.end();
    encoder.copyBufferToBuffer(buffer, 0, copy, 0, size);
    device.queue.submit([encoder.finish()]);
    await copy.mapAsync(GPUMapMode.READ);
    return inOrder(new Uint32Array(copy.getMappedRange()));
  } catch {
    return false;
  } finally {
    buffer.destroy();
    copy.destroy();
  }
}

/** @param {Uint32Array} seen */
function inOrder(seen) {
  return seen.every((value, i) => {
    if (i >= THREADS * WIDE) return value === WIDE;
    const [index, place] = [Math.floor(i / WIDE), i % WIDE];
    return value === index - (index % WIDE) + place;
  });
}
