{#- Sines and cosines of the timestep, in f32. WGSL promises digits only near zero, so whole turns
are taken off first, in two parts: 981 radians are 156 of them. -#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override COUNT: u32; override HALF: u32; override WIDTH: u32;
{{ p.bindings(["timestep:write:f32", "frequency:read:f32", "y:write:" ~ S]) }}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= COUNT) { return; }
  let row = id.x / WIDTH;
  let c = id.x % WIDTH;
  if (c >= 2u * HALF) { y[id.x] = {{ S }}(0.0); return; }
  let angle = timestep[row] * frequency[c % HALF];
  let turns = round(angle * 0.15915494);
  let rest = fma(turns, -6.28125, angle) - turns * 0.0019353072;
  let is_cosine = (c < HALF) == {{ "true" if cosine_first else "false" }};
  y[id.x] = {{ S }}(select(sin(rest), cos(rest), is_cosine));
}
