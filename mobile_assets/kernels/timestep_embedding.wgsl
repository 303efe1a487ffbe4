{#- Sines and cosines of the timestep, in f32, by polynomials: WGSL's own need not be closer than
2^-11. Quarter turns are taken off first, in three parts: 981 radians are 625 of them. -#}
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
  let quarters = round(angle * 0.63661977);
  let near = fma(quarters, -4.8375130e-4, fma(quarters, -1.5703125, angle));
  let x = fma(quarters, -7.5497900e-8, near);
  let z = x * x;
  let sine = x + x * z * (-0.16666654611 + z * (8.3321608736e-3 - z * 1.9515295891e-4));
  let cosine = 1.0 - 0.5 * z
    + z * z * (4.1666645683e-2 + z * (-1.3887316255e-3 + z * 2.4433157118e-5));
  let is_cosine = (c < HALF) == {{ "true" if cosine_first else "false" }};
  // A cosine is the sine of a quarter turn more.
  let quadrant = (i32(quarters) + select(0, 1, is_cosine)) & 3;
  let value = select(sine, cosine, (quadrant & 1) == 1);
  y[id.x] = {{ S }}(select(value, -value, quadrant >= 2));
}
