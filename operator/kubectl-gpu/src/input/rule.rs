//! CEL rules of CRDs and admission policies, evaluated as the API server evaluates them, without an API server.
//!
//! CEL's own functions and its string and list libraries come with the interpreter; Kubernetes' functions are added here.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

use cel::{
    Context, Env, ExecutionError, Value,
    common::ast::{CallExpr, EntryExpr, Expr, IdedExpr},
    extensions,
    extractors::This,
    objects::Key,
};
use gputenancy_crds::{DurationText, quantity::Amount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value as Json;

static ENV: LazyLock<Arc<Env>> = LazyLock::new(|| {
    let mut env = Env::stdlib();
    // a library that is missing makes rules that need it impossible to evaluate, which is reported for each
    let _ = extensions::strings(&mut env).and_then(|()| extensions::lists(&mut env));
    Arc::new(env)
});

/// Function that orders what a message iterates over: CEL maps have no order, and messages must be stable.
const SORTED: &str = "@sorted";

/// Why an expression cannot be evaluated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RuleError {
    /// It does not parse.
    #[error("{0}")]
    Parse(String),
    /// It fails with these variables.
    #[error("{0}")]
    Evaluate(String),
    /// It is no rule.
    #[error("the result is no boolean")]
    NotBoolean,
}

/// A parsed expression.
#[derive(Clone, Debug)]
pub struct Rule(Result<IdedExpr, RuleError>);

impl Rule {
    /// Parses an expression; an error is returned by each evaluation.
    pub fn parse(text: &str) -> Self {
        Self(ENV.parser().parse(text).map_err(|e| RuleError::Parse(e.to_string())))
    }

    /// Parses the expression of a message, which has the same result whenever it is evaluated.
    pub fn message(text: &str) -> Self {
        let mut rule = Self::parse(text);
        if let Ok(expression) = &mut rule.0 {
            order(expression);
        }
        rule
    }

    /// The result, or why the expression cannot be evaluated.
    pub fn evaluate(&self, context: &Context<'_, '_>) -> Result<Value, RuleError> {
        let expression = self.0.as_ref().map_err(Clone::clone)?;
        Value::resolve(expression, context).map_err(|e| RuleError::Evaluate(e.to_string()))
    }

    /// Whether the rule holds; `Err`: unknown.
    pub fn holds(&self, context: &Context<'_, '_>) -> Result<bool, RuleError> {
        match self.evaluate(context)? {
            Value::Bool(holds) => Ok(holds),
            _ => Err(RuleError::NotBoolean),
        }
    }

    /// The text of a message.
    pub fn text(&self, context: &Context<'_, '_>) -> Option<String> {
        match self.evaluate(context) {
            Ok(Value::String(text)) => Some(text.to_string()),
            _ => None,
        }
    }
}

/// Wraps the range of every comprehension in [`SORTED`].
fn order(node: &mut IdedExpr) {
    match &mut node.expr {
        Expr::Call(call) => call.target.iter_mut().map(|t| &mut **t).chain(&mut call.args).for_each(order),
        Expr::Comprehension(one) => {
            [&mut one.iter_range, &mut one.accu_init, &mut one.loop_cond, &mut one.loop_step, &mut one.result]
                .into_iter()
                .for_each(order);
            let args = vec![std::mem::take(&mut one.iter_range)];
            one.iter_range.expr = Expr::Call(CallExpr { func_name: SORTED.to_owned(), target: None, args });
        }
        Expr::List(list) => list.elements.iter_mut().for_each(order),
        Expr::Select(select) => order(&mut select.operand),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    order(&mut entry.value);
                }
            }
        }
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) | Expr::Struct(_) => {}
    }
}

/// A context with Kubernetes' functions and no variables.
pub fn context() -> Context<'static, 'static> {
    let mut context = Context::with_env(Arc::clone(&ENV));
    // a name that is declared twice would be reported as a rule that cannot be evaluated
    let _ = context.add_function(SORTED, sorted);
    let _ = context.add_function("sum", |This(items): This<Arc<Vec<Value>>>| sum(&items));
    let _ = context.add_function("quantity", |text: Arc<String>| quantity(&text));
    let _ = context.add_function("asInteger", |This(milli): This<i64>| milli / 1000);
    let _ = context.add_function("isGreaterThan", |This(milli): This<i64>, other: i64| milli > other);
    let _ = context.add_function("duration", |text: Arc<String>| duration(&text));
    for step in ["group", "resource", "check"] {
        let _ = context.add_function(step, |This(authorizer): This<Value>, _: Arc<String>| authorizer);
    }
    let _ = context.add_function("allowed", |This(_): This<Value>| false);
    context
}

/// JSON as CEL has it. A null field is an absent one, as for the API server.
pub fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(is) => Value::Bool(*is),
        Json::Number(n) => n.as_i64().map_or_else(|| Value::Float(n.as_f64().unwrap_or_default()), Value::Int),
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => Value::List(Arc::new(items.iter().map(value).collect())),
        Json::Object(fields) => {
            let present = fields.iter().filter(|(_, field)| !field.is_null());
            let fields: HashMap<Key, Value> = present.map(|(k, v)| (k.as_str().into(), value(v))).collect();
            fields.into()
        }
    }
}

fn sorted(range: Value) -> Value {
    let Value::Map(map) = range else { return range };
    let mut keys: Vec<&Key> = map.map.keys().collect();
    keys.sort();
    Value::List(Arc::new(keys.into_iter().map(Value::from).collect()))
}

fn sum(items: &[Value]) -> Result<Value, ExecutionError> {
    let wrong = || ExecutionError::function_error("sum", "only sums of integers are known here");
    let add = |sum: i64, item: &Value| match item {
        Value::Int(n) => sum.checked_add(*n).ok_or_else(wrong),
        _ => Err(wrong()),
    };
    items.iter().try_fold(0, add).map(Value::Int)
}

/// A quantity, in thousandths: whole numbers compare and add up as quantities do.
fn quantity(text: &str) -> Result<i64, ExecutionError> {
    let milli = Amount::parse(&Quantity(text.to_owned())).and_then(|amount| i64::try_from(amount.milli()).ok());
    milli.ok_or_else(|| ExecutionError::function_error("quantity", format!("{text} is no quantity")))
}

/// A duration, in milliseconds.
fn duration(text: &str) -> Result<i64, ExecutionError> {
    let millis = DurationText::parse(text).and_then(|text| text.get()).ok().map(|d| d.as_millis());
    let millis = millis.and_then(|n| i64::try_from(n).ok());
    millis.ok_or_else(|| ExecutionError::function_error("duration", format!("{text} is no duration")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn eval(text: &str, variables: &[(&str, Json)]) -> Result<Json, RuleError> {
        let mut context = context();
        for (name, json) in variables {
            context.add_variable_from_value(*name, value(json));
        }
        Rule::message(text).evaluate(&context).map(|v| v.json().unwrap())
    }

    #[test]
    fn rule_with_functions_of_kubernetes_evaluates() {
        let pod = json!({"limits": {"a": "2", "b": 1, "c": null}, "env": ["x", " y "]});
        for (text, expected) in [
            ("pod.?limits.?a.orValue('0') == '2' && !has(pod.limits.c)", json!(true)),
            ("quantity('1500m') < quantity('2')", json!(true)),
            (
                "pod.limits.filter(k, quantity(string(pod.limits[k])).isGreaterThan(quantity('0'))).size() > 0",
                json!(true),
            ),
            ("pod.limits.filter(k, k != 'b').map(k, quantity(string(pod.limits[k])).asInteger()).sum()", json!(2)),
            ("pod.limits.map(k, k).join(', ')", json!("a, b")),
            ("duration('1h30m') > duration('90s')", json!(true)),
            ("pod.env[1].trim() in ['y'] && 'a,b'.split(',').all(p, p.matches('^[ab]$'))", json!(true)),
            ("authorizer.group('g').resource('r').check('update').allowed()", json!(false)),
            ("pod.?none[?'x'].hasValue() || type(1) != int", json!(false)),
        ] {
            assert_eq!(eval(text, &[("pod", pod.clone()), ("authorizer", json!("none"))]).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn rule_with_unknown_variable_or_syntax_is_an_error_unless_decided_without_it() {
        for text in ["params.x == 1", "1 +", "quantity('x') == 1", "noSuchFunction()"] {
            assert!(eval(text, &[]).is_err(), "{text}");
        }
        assert_eq!(eval("false && params.x == 1", &[]).unwrap(), json!(false));
        assert_eq!(eval("params.x == 1 && false", &[]).unwrap(), json!(false));
    }
}
