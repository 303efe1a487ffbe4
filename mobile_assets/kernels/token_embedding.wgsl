{#- A row of the table for each token, plus the row of its position. -#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override COUNT: u32; override LENGTH: u32; override C4: u32; override VOCABULARY: u32;
{{ p.bindings(["tokens:write:u32", "table:read:V", "positions:read:V", "y:write:V"]) }}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x >= COUNT) { return; }
  let row = id.x / C4;
  let c = id.x % C4;
  let token = min(tokens[row], VOCABULARY - 1u);
  let v = F(table[token * C4 + c]) + F(positions[row % LENGTH * C4 + c]);
  y[id.x] = {{ p.stored("v") }};
}
