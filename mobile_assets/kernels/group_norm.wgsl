{#- GroupNorm and SiLU in one kernel: a workgroup for each group, no tensor in between.

Sums are of deviations from the group's first value, in f32: nothing passes f16's range, and a mean
far from zero costs no digits. Channels may come from two tensors (`join`), read where they lie.

wide   groups are whole vec4s; else single channels are read
-#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override PIXELS: u32; override C: u32; override GROUP: u32; // channels: all, and of one group
override LD: u32; // from pixel to pixel of the result
override EPSILON: f32;
{%- if join %}
override FIRST: u32; override LDA: u32; override LDB: u32; // channels of the first tensor
{%- endif %}
{%- set T = "V" if wide else S -%}
{%- set X = "F" if wide else "f32" -%}
{{ p.bindings(["a:write:" ~ T] + (["b:write:" ~ T] if join else []) + ["weight:read:" ~ T, "bias:read:" ~ T, "y:write:" ~ T]) }}
var<workgroup> sums: array<vec2f, {{ threads }}>;

fn load(row: u32, c: u32) -> {{ X }} {
{%- if join %}
  if (c < FIRST) { return {{ X }}(a[row * LDA + c]); }
  return {{ X }}(b[row * LDB + c - FIRST]);
{%- else %}
  return {{ X }}(a[row * LD + c]);
{%- endif %}
}
{% if wide %}
fn total(x: F) -> f32 { return x.x + x.y + x.z + x.w; }
{%- endif %}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let begin = group.x * GROUP;
  let row0 = group.y * PIXELS;
  let count = PIXELS * GROUP;
  let start = {{ X }}(load(row0, begin){{ ".x" if wide }});
  var s = {{ X }}();
  var q = {{ X }}();
  for (var i = thread; i < count; i += {{ threads }}u) {
    let d = load(row0 + i / GROUP, begin + i % GROUP) - start;
    s += d;
    q = fma(d, d, q);
  }
  sums[thread] = {{ "vec2f(total(s), total(q))" if wide else "vec2f(s, q)" }};
  for (var half = {{ threads // 2 }}u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (thread < half) { sums[thread] += sums[thread + half]; }
  }
  workgroupBarrier();
  let size = f32(count{{ " * 4u" if wide }});
  let shift = sums[0].x / size; // of the mean, from the first value
  let mean = start + shift;
  let factor = inverseSqrt(max(sums[0].y / size - shift * shift, 0.0) + EPSILON);
  for (var i = thread; i < count; i += {{ threads }}u) {
    let row = row0 + i / GROUP;
    let c = begin + i % GROUP;
    {{ "var" if silu else "let" }} v = (load(row, c) - mean) * factor * {{ X }}(weight[c]) + {{ X }}(bias[c]);
{%- if silu %}
    v = v / (1.0 + exp(-v));
{%- endif %}
    y[row * LD + c] = {{ p.stored("v") if wide else ("f16(clamp(v, -65504.0, 65504.0))" if S == "f16" else "v") }};
  }
{%- if not wide %}
  // What fills the last vec4 up must be zero: others read it as channels.
  if (group.x == 0u) {
    for (var i = thread; i < PIXELS * (LD - C); i += {{ threads }}u) {
      y[(row0 + i / (LD - C)) * LD + C + i % (LD - C)] = {{ S }}(0.0);
    }
  }
{%- endif %}
}
