//! Templates made to take the node down, each read and rendered on a small stack.

use serde_json::json;

use super::tests::scope;
use super::*;

/// Threads have 2 MiB by default; callers need some of it. In a debug build, the largest allowed templates take half of
/// that.
const STACK_BYTES: usize = 1280 * 1024;

fn on_a_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work).unwrap();
    thread.join().unwrap()
}

/// Everything that parses a template or a condition, on a small stack: what the check says, and what rendering gives.
fn all(template: String, condition: bool) -> (Result<(), String>, Result<Value, TemplateError>) {
    on_a_small_stack(move || {
        let templates = Templates::new();
        UpstreamNames::default().add(&template);
        if condition {
            let checked = templates.check_condition(&template, &any_task);
            (checked, templates.eval_condition(&template, &scope()).map(Value::from))
        } else {
            (
                templates.check(&template, &any_task),
                templates.render(&template, &scope()),
            )
        }
    })
}

/// The same nesting in all positions of an expression.
fn refused(expression: &str) {
    refused_in(&["{}"], expression, true);
    refused_in(&["{{ {} }}"], expression, false);
}

fn refused_in(templates: &[&str], expression: &str, condition: bool) {
    let shown: String = expression.chars().take(30).collect();
    for template in templates {
        let template = template.replace("{}", expression);
        let (checked, rendered) = all(template, condition);
        let detail = checked.expect_err(&shown);
        assert!(
            detail.contains(" deep, at `") || detail.contains("operators, dots and filters, at `"),
            "{shown}: {detail}"
        );
        rendered.expect_err(&shown);
    }
}

#[test]
fn nested_expressions_are_refused() {
    refused(&format!("{}true", "not ".repeat(16_000)));
    refused(&format!("{}1", "-".repeat(50_000)));
    refused(&format!("{}1", "- ".repeat(5_000)));
    refused(&format!("a{}", ".a".repeat(30_000)));
    refused(&format!("a{}", ".0".repeat(30_000)));
    refused(&format!("1{}", "|string".repeat(9_000)));
    refused(&format!("1{}", " is string".repeat(6_000)));
    refused(&format!("{}1", "1 and ".repeat(10_000)));
    refused(&format!("{}1", "1 or ".repeat(10_000)));
    refused(&format!("{}1", "1 < ".repeat(10_000)));
    refused(&format!("{}1", "1 / ".repeat(10_000)));
    refused(&format!("{}1", "1 % ".repeat(10_000)));
    refused(&format!("{}1", "1 in ".repeat(10_000)));
    refused(&format!("{}1", "1 if 1 else ".repeat(5_000)));
    refused(&format!("1{}", " if 1".repeat(10_000)));
    refused(&format!("a{}", "()".repeat(30_000)));
    refused(&format!("a{}", "[0]".repeat(20_000)));
    refused(&format!("a{}", "[::]".repeat(15_000)));
    refused(&format!("{}{}", "(".repeat(30_000), ")".repeat(30_000)));
    refused(&format!("{}1{}", "[".repeat(30_000), "]".repeat(30_000)));
    refused(&format!("{}1{}", "{1:".repeat(15_000), "}".repeat(15_000)));
    refused(&format!("{}1{}", "a(".repeat(15_000), ")".repeat(15_000)));
    let templates = [
        "x {{ {} }}",
        "{{- {} -}}",
        "{% if {} %}{% endif %}",
        "{% if 1 %}{% elif {} %}{% endif %}",
        "{% set x = {} %}",
        "{% for x in {} %}{% endfor %}",
        "{% for x in y if {} %}{% endfor %}",
        "{{ [1, {'a': 1, 'b': f(x={})}] }}",
    ];
    refused_in(&templates, &format!("{}1", "not ".repeat(5_000)), false);
    refused_in(&templates, &format!("{}1", "-".repeat(5_000)), false);
}

/// Where our parser and minijinja's might differ.
#[test]
fn nesting_cannot_be_hidden() {
    for hidden in [
        format!("{}1", "1e5and ".repeat(8_000)),
        format!("{}1", "1.e5and ".repeat(8_000)),
        format!("{}1", "1. and ".repeat(8_000)),
        format!("{}1", "1and ".repeat(8_000)),
        format!("{}1", "0xfand ".repeat(8_000)),
        format!("x. {}1", "1.e5and ".repeat(8_000)),
        format!("'\\'' {}", "and '\\''".repeat(6_000)),
        format!("{}1", "not\u{a0}".repeat(8_000)),
    ] {
        let shown: String = hidden.chars().take(30).collect();
        for (template, condition) in [(hidden.clone(), true), (format!("{{{{ {hidden} }}}}"), false)] {
            let (checked, rendered) = all(template, condition);
            checked.expect_err(&shown);
            rendered.expect_err(&shown);
        }
    }
    for hidden in [
        format!("{{# {{{{ #}}{{{{ {}1 }}}}", "-".repeat(60_000)),
        format!("{{#-#}}{{{{ {}1 }}}}", "-".repeat(60_000)),
        format!("{{% raw %}}{{{{{{%-endraw-%}}{{{{ {}1 }}}}", "-".repeat(60_000)),
        format!("{{{{ '{{#' }}}}{{{{ {}1 }}}}{{{{ '#}}' }}}}", "-".repeat(60_000)),
        format!("{{{{ '}}}}' ~ {}1 }}}}", "-".repeat(60_000)),
    ] {
        let (checked, _) = all(hidden, false);
        checked.unwrap_err();
    }
}

#[test]
fn nested_statements_are_refused() {
    for (open, middle, close) in [
        ("{% if true %}", "{% elif true %}", "{% endif %}"),
        ("{% if true %}", "{% else %}{% if true %}", "{% endif %}"),
    ] {
        let (checked, _) = all(format!("{open}{}{close}", middle.repeat(2_000)), false);
        let detail = checked.unwrap_err();
        assert!(
            detail.contains("more than 64 `elif`") || detail.contains("nested more than 16 levels deep"),
            "{detail}"
        );
    }
    for (open, close) in [("{% if 1 %}", "{% endif %}"), ("{% for x in y %}", "{% endfor %}")] {
        let (checked, _) = all(format!("{}{}", open.repeat(2_000), close.repeat(2_000)), false);
        assert!(
            checked
                .unwrap_err()
                .contains("`if` and `for` are nested more than 16 levels deep")
        );
    }
}

/// Manually nested values overflow the stack when they are printed, compared or dropped.
#[test]
fn nested_values_are_refused() {
    for step in [
        "{% set x = [x] %}",
        "{% set x = {'a': x} %}",
        "{% set x = dict(a=x) %}",
        "{% set x = x[::1] %}",
    ] {
        let (checked, rendered) = all(format!("{{% set x = [1] %}}{}{{{{ x }}}}", step.repeat(2_000)), false);
        assert!(checked.unwrap_err().contains("could nest values"), "{step}");
        rendered.unwrap_err();
    }
    for step in ["[x]", "{'a': x}", "x ~ x"] {
        let template =
            format!("{{% set x = 'x' %}}{{% for i in range(2000) %}}{{% set x = {step} %}}{{% endfor %}}{{{{ x }}}}");
        let (_, rendered) = all(template, false);
        assert_eq!(rendered.unwrap(), json!("x"), "{step}");
    }
    let template = "{% set x = 'x' %}{% for i in range(5) %}{% set x = x ~ x %}{{ x }},{% endfor %}";
    assert_eq!(all(template.into(), false).1.unwrap(), json!("xx,xx,xx,xx,xx,"));
    let (checked, _) = all("{% set ns = namespace(x='x') %}".into(), false);
    assert!(checked.unwrap_err().contains("there is no function `namespace`"));
}

/// The largest allowed templates fit into the small stack.
#[test]
fn the_most_that_is_let_in() {
    let most = 190;
    for expression in [
        format!("{}true", "not ".repeat(most)),
        format!("{}1", "- ".repeat(most)),
        format!("{}1", "1 and ".repeat(most)),
        format!("{}1", "1 if 1 else ".repeat(most / 2)),
        format!("1{}", " if 1".repeat(most)),
        format!("1{}", "|string".repeat(most)),
        format!("1{}", " is string".repeat(most)),
        format!("[1]{}", "[::]".repeat(most / 2)),
        format!("[1]{}", "|list".repeat(most)),
        format!("[1]{}", "|reverse".repeat(most)),
        format!("[[1]]{}", "|zip".repeat(most)),
        format!("params{}|default(1)", ".a".repeat(most)),
        format!("{}1{}", "(".repeat(16), ")".repeat(16)),
        format!("{}1{}", "[1 < ".repeat(16), "]".repeat(16)),
        format!("{}1{} < 1", "(1 < ".repeat(16), ")".repeat(16)),
        format!("{}1{}", "[-1 if 1 else not -1 < 1 if ".repeat(16), "]".repeat(16)),
        format!("{}1{}", "range(1 or not ".repeat(16), ")".repeat(16)),
        format!("{}1{}", "{1: not not not 1 and ".repeat(16), "}".repeat(16)),
    ] {
        let nested = |inside: &str| "{% if 1 %}".repeat(15) + inside + &"{% endif %}".repeat(15);
        let elifs = "{% elif 0 %}".repeat(64);
        for (template, condition) in [
            (expression.clone(), true),
            (format!("{{{{ {expression} }}}}"), false),
            (format!("x {{{{ {expression} }}}}"), false),
            (
                nested(&format!("{{% for x in [1] %}}{{{{ {expression} }}}}{{% endfor %}}")),
                false,
            ),
            (
                nested(&format!("{{% if 0 %}}{elifs}{{{{ {expression} }}}}{{% endif %}}")),
                false,
            ),
        ] {
            let (checked, _) = all(template, condition);
            assert_eq!(checked, Ok(()), "{expression}");
        }
    }
    for step in [
        "{% set x = [x] %}",
        "{% set x = {'a': x} %}",
        "{% set x = (x,) %}",
        "{% set x = x|reverse %}",
        "{% set x = x|zip %}",
    ] {
        let template = format!(
            "{{% set x = [1] %}}{}{{{{ x }}}}{{{{ x == x }}}}{{{{ x < [x] }}}}{{{{ x|pprint }}}}",
            step.repeat(190)
        );
        let (checked, _) = all(template, false);
        assert_eq!(checked, Ok(()), "{step}");
    }
    let wide = format!("{{{{ [{}] }}}}", "not params.n < -1, ".repeat(3_000));
    assert_eq!(all(wide, false).0, Ok(()));
    let quoted = format!("{{{{ '{}' }}}}", "- not . | ( [ ".repeat(4_000));
    assert_eq!(all(quoted, false).0, Ok(()));
    let comment = format!("{{# {} #}}{{{{ 1 }}}}", "{{ - not ( ".repeat(4_000));
    assert_eq!(all(comment, false).0, Ok(()));
    let many = "{% if params.n %}{{ params.n }}{% else %}-{% endif %}".repeat(1_000);
    assert_eq!(all(many, false).0, Ok(()));
}
