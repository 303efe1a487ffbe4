{#- LayerNorm: a workgroup for each row. -#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override C: u32; override C4: u32; // channels, and vec4s of a row
override EPSILON: f32; override ROWS: u32;
{{ p.bindings(["a:write:V", "weight:read:V", "bias:read:V", "y:write:V"]) }}
var<workgroup> sums: array<vec2f, {{ threads }}>;

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u,
        @builtin(local_invocation_index) thread: u32) {
  let row = min(group.y * groups.x + group.x, ROWS - 1u) * C4;
  let start = f32(a[row].x);
  var s = 0.0;
  var q = 0.0;
  for (var i = thread; i < C4; i += {{ threads }}u) {
    let inside = i * 4u + vec4u(0u, 1u, 2u, 3u) < vec4u(C);
    let d = select(F(), F(a[row + i]) - start, inside);
    s += dot(d, F(1.0));
    q += dot(d, d);
  }
  sums[thread] = vec2f(s, q);
  for (var half = {{ threads // 2 }}u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (thread < half) { sums[thread] += sums[thread + half]; }
  }
  workgroupBarrier();
  let shift = sums[0].x / f32(C);
  let mean = start + shift;
  let factor = inverseSqrt(max(sums[0].y / f32(C) - shift * shift, 0.0) + EPSILON);
  for (var i = thread; i < C4; i += {{ threads }}u) {
    // weights and biases are zero beyond the last channel
    let v = (F(a[row + i]) - mean) * factor * F(weight[i]) + F(bias[i]);
    y[row + i] = {{ p.stored("v") }};
  }
}
