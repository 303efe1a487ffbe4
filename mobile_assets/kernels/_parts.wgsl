{#- What kernels share. S is the type that activations are stored in; sums are always in f32. -#}

{%- macro head() -%}
{% if S == "f16" %}enable f16;
{% endif -%}
alias V = vec4<{{ S }}>;
alias F = vec4<f32>;
{%- if packed() %}
fn unpacked(x: vec2<u32>) -> F { return F(unpack2x16float(x.x), unpack2x16float(x.y)); }
{%- endif %}
{%- endmacro -%}

{#- Subgroups of eight are a CPU's, and that reads two halves far faster as one word. -#}
{%- macro packed() -%}{% if subgroup and S == "f16" %}yes{% endif %}{%- endmacro -%}
{%- macro vector() -%}{{ "vec2<u32>" if packed() else "V" }}{%- endmacro -%}
{%- macro loaded(x) -%}{{ "unpacked" if packed() else "F" }}({{ x }}){%- endmacro -%}

{#- The head of an entry point whose invocations lie `wx` across and `wy` down. -#}
{%- macro main(wx, wy) -%}
{% if subgroup -%}
@compute @workgroup_size({{ wx * wy }})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) index: u32,
        @builtin(subgroup_invocation_id) lane: u32) {
  let local = vec2u(index % {{ wx }}u, index / {{ wx }}u);
  let eight = lane & 0xfffffff8u; // the first of my neighbours
{%- else -%}
@compute @workgroup_size({{ wx }}, {{ wy }})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) local: vec3u) {
{%- endif %}
{%- endmacro -%}

{#- Bindings in the order of their names: "name:read|write:type". -#}
{%- macro bindings(names) -%}
{%- for entry in names %}{% set name, access, type = entry.split(":") %}
@group(0) @binding({{ loop.index0 }}) var<storage, {{ "read" if access == "read" else "read_write" }}> {{ name }}: array<{{ type }}>;
{%- endfor %}
{%- endmacro -%}

{%- macro activation(kind) -%}
{% if kind == "silu" -%}
fn activate(x: F) -> F { return x / (1.0 + exp(-x)); }
{% elif kind == "quick_gelu" -%}
fn activate(x: F) -> F { return x / (1.0 + exp(-1.702 * x)); }
{% elif kind in ("gelu", "geglu") -%}
// erf to 1.5e-7 (Abramowitz and Stegun, 7.1.26)
fn erf4(x: F) -> F {
  let a = abs(x);
  let t = 1.0 / (1.0 + 0.3275911 * a);
  let p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return sign(x) * (1.0 - p * exp(-min(a * a, F(80.0))));
}
fn activate(x: F) -> F { return 0.5 * x * (1.0 + erf4(x * 0.70710678)); }
{% else -%}
fn activate(x: F) -> F { return x; }
{% endif -%}
{%- endmacro -%}

{#- f16 ends at 65504; beyond it a store would make infinity, which the next sum turns into NaN. -#}
{%- macro stored(x) -%}
{% if S == "f16" %}V(clamp({{ x }}, F(-65504.0), F(65504.0))){% else %}{{ x }}{% endif %}
{%- endmacro -%}

{#- Four rows of four weights at `index`, and the products with one vec4 of inputs. -#}
{%- macro weights(form, index, name) -%}
{% if form == "int8" %}F(unpack4xI8({{ name }}[{{ index }}])){% else %}{{ loaded(name ~ "[" ~ index ~ "]") }}{% endif %}
{%- endmacro -%}
