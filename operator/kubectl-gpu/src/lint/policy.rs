//! Admission policies as `helm template` prints them: which apply to an object that is created, and what they refuse of it.

use std::collections::{BTreeMap, BTreeSet};

use cel::Context;
use k8s_openapi::{
    api::admissionregistration::v1::{
        MatchResources, MutatingAdmissionPolicy, NamedRuleWithOperations, ValidatingAdmissionPolicy,
        ValidatingAdmissionPolicyBinding,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::{
    ResourceExt as _,
    core::{ApiResource, GroupVersionKind, Selector, SelectorExt as _},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{grant::Grant, violation::violations};
use crate::input::{
    InputError, Text,
    rule::{self, Rule},
    values,
};

/// The policies on tenants' objects that the chart renders with its default values. A test compares them with the chart.
pub const DEFAULT: &str = include_str!("../../default-policies.yaml");

type Labels = BTreeMap<String, String>;

/// Name of the mutating policy that fills in pods of tenants.
const FILLS_IN: &str = "gputenancy-tenant-pod-defaults";

/// Validating admission policies with their bindings.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    validating: Vec<Policy>,
    /// Pods are filled in before, so that annotations of fractions are replaced.
    fills_in: bool,
}

#[derive(Clone, Debug)]
struct Policy {
    name: String,
    constraints: MatchResources,
    bindings: Vec<MatchResources>,
    /// It reads the namespace's `GpuGrant`.
    params: bool,
    conditions: Vec<Rule>,
    variables: Vec<(String, Rule)>,
    validations: Vec<Validation>,
}

#[derive(Clone, Debug)]
struct Validation {
    rule: Rule,
    /// Fields of `params.spec` that the rule reads.
    reads: BTreeSet<String>,
    message: String,
    message_rule: Option<Rule>,
}

/// An object that is created.
pub(super) struct Request<'a> {
    pub object: &'a Value,
    /// Its namespace, and the grant there; `None`: the object is in no namespace, and its creator is not known to be a tenant.
    pub within: Option<(&'a str, &'a Grant)>,
    /// Labels of its namespace.
    pub namespace_labels: Labels,
}

/// Something that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// JSON pointer of the field.
    pub pointer: String,
    pub message: String,
}

/// The result of the policies for an object.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub refusals: Vec<Refusal>,
    /// Policies that cannot be evaluated offline, with the reason.
    pub unknown: Vec<(String, String)>,
}

impl Policies {
    /// Reads what `helm template` prints; other objects are ignored.
    pub fn read(texts: &[Text]) -> Result<Self, InputError> {
        let documents = values(texts)?;
        let mut bindings: BTreeMap<String, Vec<MatchResources>> = BTreeMap::new();
        for binding in typed::<ValidatingAdmissionPolicyBinding>(&documents, "ValidatingAdmissionPolicyBinding") {
            let spec = binding.spec;
            if spec.validation_actions.iter().any(|action| action == "Deny") {
                let matches = spec.match_resources.unwrap_or_default();
                bindings.entry(spec.policy_name).or_default().push(matches);
            }
        }
        let policies = typed::<ValidatingAdmissionPolicy>(&documents, "ValidatingAdmissionPolicy");
        let validating = policies.map(|policy| Policy::new(policy, &mut bindings)).collect();
        let mut mutating = typed::<MutatingAdmissionPolicy>(&documents, "MutatingAdmissionPolicy");
        Ok(Self { validating, fills_in: mutating.any(|policy| policy.name_any() == FILLS_IN) })
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.validating.is_empty()
    }

    /// Does the API server fill in pods of tenants before it evaluates these policies?
    pub(super) fn fill_in_pods(&self) -> bool {
        self.fills_in
    }

    /// The result of the policies for an object that is created.
    pub(super) fn check(&self, request: &Request<'_>) -> Verdict {
        let mut verdict = Verdict::default();
        self.validating
            .iter()
            .filter(|policy| policy.matches(request))
            .for_each(|policy| policy.check(request, &mut verdict));
        verdict
    }
}

fn typed<K: DeserializeOwned>(documents: &[Value], kind: &str) -> impl Iterator<Item = K> {
    let of_kind = documents.iter().filter(move |d| d.get("kind").and_then(Value::as_str) == Some(kind));
    of_kind.filter_map(|d| serde_json::from_value(d.clone()).ok())
}

impl Policy {
    fn new(policy: ValidatingAdmissionPolicy, bindings: &mut BTreeMap<String, Vec<MatchResources>>) -> Self {
        let name = policy.name_any();
        let spec = policy.spec.unwrap_or_default();
        let validations = spec.validations.into_iter().flatten().map(|v| Validation {
            rule: Rule::parse(&v.expression),
            reads: reads(&v.expression),
            message: v.message.unwrap_or_else(|| format!("failed expression: {}", v.expression)),
            message_rule: v.message_expression.as_deref().map(Rule::message),
        });
        Self {
            bindings: bindings.remove(&name).unwrap_or_default(),
            name,
            constraints: spec.match_constraints.unwrap_or_default(),
            params: spec.param_kind.is_some(),
            conditions: spec.match_conditions.iter().flatten().map(|c| Rule::parse(&c.expression)).collect(),
            variables: spec.variables.into_iter().flatten().map(|v| (v.name, Rule::message(&v.expression))).collect(),
            validations: validations.collect(),
        }
    }

    fn matches(&self, request: &Request<'_>) -> bool {
        selects(&self.constraints, request) && self.bindings.iter().any(|binding| selects(binding, request))
    }

    fn check(&self, request: &Request<'_>, verdict: &mut Verdict) {
        let context = self.context(request, request.object);
        let conditions: Vec<_> = self.conditions.iter().map(|condition| condition.holds(&context)).collect();
        if conditions.iter().any(|holds| matches!(holds, Ok(false))) {
            return;
        }
        let undecided = conditions.into_iter().find_map(Result::err);
        let unknown = request.within.map(|(_, grant)| &grant.unknown);
        for validation in &self.validations {
            if unknown.is_some_and(|unknown| !unknown.is_disjoint(&validation.reads)) {
                continue;
            }
            match (validation.rule.holds(&context), &undecided) {
                (Ok(true), _) => {}
                (Ok(false), None) => verdict.refusals.extend(self.refusals(validation, request)),
                (Ok(false), Some(why)) => verdict.unknown.push((self.name.clone(), why.to_string())),
                (Err(why), _) => verdict.unknown.push((self.name.clone(), why.to_string())),
            }
        }
    }

    fn refusals<'a>(&'a self, validation: &'a Validation, request: &'a Request<'_>) -> impl Iterator<Item = Refusal> {
        let holds = |object: &Value| validation.rule.holds(&self.context(request, object)).ok();
        violations(request.object, &holds).into_iter().map(|violation| {
            let text = |object| validation.message_rule.as_ref()?.text(&self.context(request, object));
            let message = text(&violation.alone).or_else(|| text(request.object));
            Refusal { pointer: violation.pointer, message: message.unwrap_or_else(|| validation.message.clone()) }
        })
    }

    /// The variables of the API server, as far as they are known: an object in a tenant's namespace is created by a user of the tenant.
    fn context(&self, request: &Request<'_>, object: &Value) -> Context<'static, 'static> {
        let mut context = rule::context();
        let resource = resource(object);
        let namespace = request.within.map(|(namespace, _)| namespace);
        let attributes = json!({
            "operation": "CREATE", "namespace": namespace, "name": object.pointer("/metadata/name"),
            "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
            "userInfo": request.within.map(|_| json!({"username": "", "groups": [], "extra": {}})),
        });
        if let Some((_, grant)) = request.within {
            context.add_variable_from_value("authorizer", "");
            if self.params {
                context.add_variable_from_value("params", rule::value(&json!({"spec": grant.spec})));
            }
        }
        let owner = json!({"metadata": {"name": namespace, "labels": request.namespace_labels}});
        for (name, json) in [("object", object), ("request", &attributes), ("namespaceObject", &owner)] {
            context.add_variable_from_value(name, rule::value(json));
        }
        context.add_variable_from_value("oldObject", cel::Value::Null);
        let mut variables = std::collections::HashMap::new();
        for (name, rule) in &self.variables {
            // a variable that cannot be evaluated makes the rules unknown that read it
            if let Ok(value) = rule.evaluate(&context) {
                variables.insert(name.clone(), value);
                context.add_variable_from_value("variables", variables.clone());
            }
        }
        context
    }
}

/// Names behind `params.spec.` in an expression.
fn reads(expression: &str) -> BTreeSet<String> {
    let name =
        |rest: &str| rest.trim_start_matches('?').split(|c: char| !c.is_alphanumeric()).next().map(str::to_owned);
    expression.split("params.spec.").skip(1).filter_map(name).collect()
}

fn selects(matches: &MatchResources, request: &Request<'_>) -> bool {
    let any = |rules: &Option<Vec<NamedRuleWithOperations>>| {
        rules.as_ref().map(|all| all.iter().any(|r| rule_matches(r, request)))
    };
    let labels = request.object.pointer("/metadata/labels").cloned().unwrap_or_default();
    let labels: Labels = serde_json::from_value(labels).unwrap_or_default();
    any(&matches.resource_rules) != Some(false)
        && any(&matches.exclude_resource_rules) != Some(true)
        && selector_matches(matches.namespace_selector.as_ref(), &request.namespace_labels)
        && selector_matches(matches.object_selector.as_ref(), &labels)
}

fn selector_matches(selector: Option<&LabelSelector>, labels: &Labels) -> bool {
    selector.is_none_or(|s| Selector::try_from(s.clone()).is_ok_and(|s| s.matches(labels)))
}

fn rule_matches(rule: &NamedRuleWithOperations, request: &Request<'_>) -> bool {
    let resource = resource(request.object);
    let names = |list: &Option<Vec<String>>, name: &str| list.iter().flatten().any(|one| one == "*" || one == name);
    let scope = match rule.scope.as_deref() {
        Some("Namespaced") => request.within.is_some(),
        Some("Cluster") => request.within.is_none(),
        _ => true,
    };
    scope
        && names(&rule.api_groups, &resource.group)
        && names(&rule.api_versions, &resource.version)
        && names(&rule.operations, "CREATE")
        && names(&rule.resources, &resource.plural)
}

/// The resource of an object.
fn resource(object: &Value) -> ApiResource {
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("kind")))
}
