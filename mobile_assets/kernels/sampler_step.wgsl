{#- A row of a sampler table: guidance, then a sum of earlier latents, earlier answers and noise.

`factors`: 4 for the latents and 4 for the answers by the slot they lie in, then noise, the scale of
what the UNet sees next, guidance, the slots to write (answer, latent), whether there are two answers.
-#}
{%- import "_parts.wgsl" as p with context -%}
override COUNT: u32;
{{ p.bindings(["answer:write:f32", "factors:write:f32", "noise:write:f32", "latents:write:f32", "answers:write:f32", "latent:write:f32", "next:write:f32"]) }}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  let i = id.x;
  if (i >= COUNT) { return; }
  var mine = answer[i];
  if (factors[13] > 0.0) { mine += factors[10] * (answer[COUNT + i] - mine); }
  let slot = u32(factors[11]);
  answers[slot * COUNT + i] = mine;
  var sum = factors[8] * noise[i];
  for (var s = 0u; s < 4u; s++) { // a slot without a factor may hold anything
    if (factors[s] != 0.0) { sum += factors[s] * latents[s * COUNT + i]; }
    if (factors[4u + s] != 0.0) { sum += factors[4u + s] * answers[s * COUNT + i]; }
  }
  latents[u32(factors[12]) * COUNT + i] = sum;
  latent[i] = sum;
  next[i] = sum * factors[9];
}
