{#- Over rows of scores, a workgroup for each: in place, or as two numbers a row (`summary`): the
largest score and the inverse of the sum, which the product that reads the scores applies itself. -#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override N: u32; override M: u32; override LD: u32; // rows, scores in each, vec4s from row to row
{{ p.bindings(["a:write:V"] + (["summary:write:vec2<f32>"] if summary else [])) }}
var<workgroup> sums: array<vec2f, {{ threads }}>;

fn merged(a: vec2f, b: vec2f) -> vec2f { // (largest, sum of exp(x - largest))
  let largest = max(a.x, b.x);
  return vec2f(largest, a.y * exp(a.x - largest) + b.y * exp(b.x - largest));
}

@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = (group.y * N + group.x) * LD;
  let length = {{ "M - N + group.x + 1u" if causal else "M" }};
  var state = vec2f(-3.4e38, 0.0);
  for (var i = thread; i * 4u < length; i += {{ threads }}u) {
    let inside = i * 4u + vec4u(0u, 1u, 2u, 3u) < vec4u(length);
    let v = select(F(-3.4e38), F(a[row + i]), inside);
    let largest = max(max(v.x, v.y), max(v.z, v.w));
    state = merged(state, vec2f(largest, dot(exp(v - largest), F(1.0))));
  }
  sums[thread] = state;
  for (var half = {{ threads // 2 }}u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (thread < half) { sums[thread] = merged(sums[thread], sums[thread + half]); }
  }
  workgroupBarrier();
  let largest = sums[0].x;
  let inverse = 1.0 / sums[0].y;
{%- if summary %}
  if (thread == 0u) { summary[group.y * N + group.x] = vec2f(largest, inverse); }
{%- else %}
  for (var i = thread; i < LD; i += {{ threads }}u) {
    let inside = i * 4u + vec4u(0u, 1u, 2u, 3u) < vec4u(length);
    a[row + i] = V(select(F(), exp(F(a[row + i]) - largest) * inverse, inside));
  }
{%- endif %}
}
