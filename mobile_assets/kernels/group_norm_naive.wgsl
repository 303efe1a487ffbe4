{#- GroupNorm as separate kernels (`step`: mean, variance, apply), each reading the tensor again: what
the ablation measures the fused one against. -#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override PIXELS: u32; override GROUPS: u32; override GROUP: u32; // channels of one group
override LD: u32; // channels from pixel to pixel
{%- if step == "apply" %}
override COUNT: u32;
{%- endif %}
{%- if step == "variance" %}
override EPSILON: f32;
{%- endif %}
{{ p.bindings(["a:write:" ~ S, "means:write:f32"] + ([] if step == "mean" else ["factors:write:f32"]) + (["weight:read:" ~ S, "bias:read:" ~ S, "y:write:" ~ S] if step == "apply" else [])) }}
{%- if step == "apply" %}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let at = id.y * groups.x * 64u + id.x;
  if (at >= COUNT) { return; }
  let c = at % LD;
  let which = at / (PIXELS * LD) * GROUPS + min(c / GROUP, GROUPS - 1u);
  let v = (f32(a[at]) - means[which]) * factors[which] * f32(weight[c]) + f32(bias[c]);
  y[at] = {{ S }}({{ "clamp(v, -65504.0, 65504.0)" if S == "f16" else "v" }});
}
{%- else %}
var<workgroup> sums: array<f32, {{ threads }}>;

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let which = group.y * GROUPS + group.x;
  let count = PIXELS * GROUP;
  var s = 0.0;
  for (var i = thread; i < count; i += {{ threads }}u) {
    let x = f32(a[(group.y * PIXELS + i / GROUP) * LD + group.x * GROUP + i % GROUP]);
    s += {{ "x" if step == "mean" else "(x - means[which]) * (x - means[which])" }};
  }
  sums[thread] = s;
  for (var half = {{ threads // 2 }}u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (thread < half) { sums[thread] += sums[thread + half]; }
  }
  workgroupBarrier();
  if (thread == 0u) {
    {{ "means[which] = sums[0] / f32(count);" if step == "mean" else "factors[which] = inverseSqrt(sums[0] / f32(count) + EPSILON);" }}
  }
}
{%- endif %}
