{#- A small picture straight from a latent: RGB = matrix * (channels, 1), as bytes of one word. -#}
{%- import "_parts.wgsl" as p with context -%}
override COUNT: u32; override C: u32;
{{ p.bindings(["latent:write:f32", "matrix:write:f32", "picture:write:u32"]) }}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= COUNT) { return; }
  var colour = vec4f(0.0, 0.0, 0.0, 1.0);
  for (var r = 0u; r < 3u; r++) {
    var sum = matrix[r * (C + 1u) + C];
    for (var c = 0u; c < C; c++) { sum += matrix[r * (C + 1u) + c] * latent[c * COUNT + id.x]; }
    colour[r] = sum * 0.5 + 0.5;
  }
  picture[id.x] = pack4x8unorm(colour);
}
