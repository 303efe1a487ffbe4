{#- What no other kernel could take in: a sum, an activation, a copy into a wider row. -#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override COUNT: u32; // vec4s
{%- if op == "copy" %}
override C4: u32; override LD: u32; override OFFSET: u32; // of the wider rows
{%- endif %}
{%- if op == "add" %}
override ROWS: u32; override C4: u32; // rows that share one of `b`; 0: as many as `a`
{%- endif %}
{{ p.bindings(["a:write:V"] + (["b:write:V"] if op in ("add", "mul") else []) + ["y:write:V"]) }}
{{ p.activation(op) }}
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let at = id.y * groups.x * 64u + id.x;
  if (at >= COUNT) { return; }
{%- if op == "copy" %}
  y[at / C4 * LD + OFFSET + at % C4] = a[at];
{%- elif op == "add" %}
  let v = F(a[at]) + F(b[select(at / C4 / max(ROWS, 1u) * C4 + at % C4, at, ROWS == 0u)]);
  y[at] = {{ p.stored("v") }};
{%- elif op == "mul" %}
  let v = F(a[at]) * F(b[at]);
  y[at] = {{ p.stored("v") }};
{%- else %}
  y[at] = {{ p.stored("activate(F(a[at]))") }};
{%- endif %}
}
