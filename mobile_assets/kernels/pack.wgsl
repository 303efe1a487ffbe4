{#- An input, f32 in the order others use, to rows of vec4 channels (`unpack`: an output back). -#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override ROWS: u32; override C: u32; override C4: u32;
override PIXELS: u32; // of a picture, whose channels lie apart; 1 where channels lie side by side
{{ p.bindings(["a:write:V", "y:write:f32"] if unpack else ["a:write:f32", "y:write:V"]) }}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let at = id.y * groups.x * 64u + id.x;
  if (at >= ROWS * C4) { return; }
  let row = at / C4;
  let plain = row / PIXELS * PIXELS * C + row % PIXELS;
{%- if unpack %}
  let v = F(a[at]);
  for (var q = 0u; q < 4u; q++) {
    let c = at % C4 * 4u + q;
    if (c < C) { y[plain + c * PIXELS] = v[q]; }
  }
{%- else %}
  var v = F();
  for (var q = 0u; q < 4u; q++) {
    let c = at % C4 * 4u + q;
    if (c < C) { v[q] = a[plain + c * PIXELS]; }
  }
  y[at] = {{ p.stored("v") }};
{%- endif %}
}
