{#- Back from Winograd's domain, with what a convolution has at its end: bias, time embedding, skip.
`a` is the matrix, row by row. -#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override OH: u32; override OW: u32; override N4: u32;
override ACROSS: u32; override FIRST: u32; override COUNT: u32; // tiles in a row; of this dispatch
{{ p.bindings(["x:write:V", "y:write:V", "bias:read:V"] + (["vector:write:V"] if vector else []) + (["residual:write:V"] if residual else [])) }}
{%- set m = a | length %}
{%- set n = a[0] | length %}

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3u, @builtin(num_workgroups) groups: vec3u) {
  let at = id.y * groups.x * 32u + id.x;
  if (at >= COUNT * N4) { return; }
{%- for i in range(m) %}{% for j in range(n) %}
  var t{{ i }}_{{ j }}: F;
{%- endfor %}{% endfor %}
  let tile = FIRST + at / N4;
  let c = at % N4;
  let down = (OH + {{ m - 1 }}u) / {{ m }}u;
  let image = tile / (ACROSS * down);
  let oy = tile / ACROSS % down * {{ m }}u;
  let ox = tile % ACROSS * {{ m }}u;
  let offset = F(bias[c]){% if vector %} + F(vector[image * N4 + c]){% endif %};
{%- for j in range(n) %}
  {
{%- for i in range(n) %}
    let d{{ i }} = F(x[{{ i * n + j }}u * COUNT * N4 + at]);
{%- endfor %}
{%- for i in range(m) %}
    t{{ i }}_{{ j }} = {{ sum(a[i], "d") }};
{%- endfor %}
  }
{%- endfor %}
{%- for i in range(m) %}
  if (oy + {{ i }}u < OH) {
    let row = ((image * OH + oy + {{ i }}u) * OW + ox) * N4 + c;
{%- for j in range(m) %}
    if (ox + {{ j }}u < OW) {
      let v = {{ sum(a[j], "t%d_" % i) }} + offset{% if residual %} + F(residual[row + {{ j }}u * N4]){% endif %};
      y[row + {{ j }}u * N4] = {{ p.stored("v") }};
    }
{%- endfor %}
  }
{%- endfor %}
}
