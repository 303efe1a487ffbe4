{#- FlashAttention: scores, softmax and the sum of values in one kernel, `block` keys at a time.

Nothing of the size queries x keys is ever stored. An invocation keeps `queries` rows of Q and of
the result in registers, so this pays for small heads only.

subgroup  eight neighbours read a key each and pass them around (see gemm)
-#}
{%- import "_parts.wgsl" as p with context -%}
{{ p.head() }}
override N: u32; override M: u32; // queries and keys
override HEADS: u32; override LDQ: u32; override LDK: u32; // vec4s from token to token
override SCALE: f32;
{{ p.bindings(["q:write:V", "k:write:" ~ p.vector(), "v:write:" ~ p.vector(), "y:write:V"]) }}

{%- set keys = 8 if subgroup else block %}
@compute @workgroup_size({{ threads }})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32
        {{- ", @builtin(subgroup_invocation_id) lane: u32" if subgroup }}) {
{%- if subgroup %}
  let eight = lane & 0xfffffff8u; // the first of my neighbours
{%- endif %}
  let batch = group.y / HEADS;
  let head = group.y % HEADS;
  let row = (group.x * {{ threads }}u + thread) * {{ queries }}u;
  let k0 = batch * M * LDK + head * {{ d4 }}u;
{%- for i in range(queries) %}
  let q_{{ i }} = (batch * N + min(row + {{ i }}u, N - 1u)) * LDQ + head * {{ d4 }}u;
{%- for d in range(d4) %}
  let q{{ i }}_{{ d }} = F(q[q_{{ i }} + {{ d }}u]) * SCALE;
  var y{{ i }}_{{ d }} = F();
{%- endfor %}
  var largest{{ i }} = -3.4e38;
  var total{{ i }} = 0.0;
{%- endfor %}
  for (var m = 0u; m < M; m += {{ keys }}u) {
{%- if subgroup %}
    let mine = k0 + min(m + lane % 8u, M - 1u) * LDK;
{%- for d in range(d4) %}
    let k_{{ d }} = {{ p.loaded("k[mine + %du]" % d) }};
    let v_{{ d }} = {{ p.loaded("v[mine + %du]" % d) }};
{%- endfor %}
{%- endif %}
{%- for j in range(keys) %}
{%- if not subgroup %}
    let k_{{ j }} = k0 + {{ "min(m + %du, M - 1u)" % j if j else "m" }} * LDK;
{%- endif %}
{%- for i in range(queries) %}
    var s{{ i }}_{{ j }} = 0.0;
{%- endfor %}
{%- for d in range(d4) %}
    { let x = {% if subgroup %}subgroupShuffle(k_{{ d }}, eight + {{ j }}u){% else %}F(k[k_{{ j }} + {{ d }}u]){% endif %};
{%- for i in range(queries) %} s{{ i }}_{{ j }} += dot(q{{ i }}_{{ d }}, x);{% endfor %} }
{%- endfor %}
{%- if j %}{% for i in range(queries) %}
    s{{ i }}_{{ j }} = select(-3.4e38, s{{ i }}_{{ j }}, m + {{ j }}u < M);
{%- endfor %}{% endif %}
{%- endfor %}
{%- for i in range(queries) %}
    { let largest = max(largest{{ i }}, {% for j in range(keys - 1) %}max(s{{ i }}_{{ j }}, {% endfor %}s{{ i }}_{{ keys - 1 }}{{ ")" * (keys - 1) }});
      let fade = exp(largest{{ i }} - largest);
      largest{{ i }} = largest;
      total{{ i }} *= fade;
{%- for d in range(d4) %}
      y{{ i }}_{{ d }} *= fade;
{%- endfor %}
{%- for j in range(keys) %}
      s{{ i }}_{{ j }} = exp(s{{ i }}_{{ j }} - largest);
      total{{ i }} += s{{ i }}_{{ j }};
{%- endfor %} }
{%- endfor %}
{%- for d in range(d4) %}{# a sum stays in its register for all keys of the block #}
{%- for j in range(keys) %}
    { let x = {% if subgroup %}subgroupShuffle(v_{{ d }}, eight + {{ j }}u){% else %}F(v[k_{{ j }} + {{ d }}u]){% endif %};
{%- for i in range(queries) %} y{{ i }}_{{ d }} = fma(F(s{{ i }}_{{ j }}), x, y{{ i }}_{{ d }});{% endfor %} }
{%- endfor %}
{%- endfor %}
  }
{%- for i in range(queries) %}
  if (row + {{ i }}u < N) {
{%- for d in range(d4) %}
    { let r = y{{ i }}_{{ d }} / total{{ i }}; y[q_{{ i }} + {{ d }}u] = {{ p.stored("r") }}; }
{%- endfor %}
  }
{%- endfor %}
}
