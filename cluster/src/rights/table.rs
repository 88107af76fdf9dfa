//! The rights that a program needs: one line for each rule.

use std::fmt;

/// Scope of a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the whole cluster: a `ClusterRole`.
    Everywhere,
    /// In the program's own namespace: a Role.
    Home,
    /// In the namespace of the layouts for NVIDIA's MIG manager: a Role.
    Layouts,
    /// In the namespace of the configs for NVIDIA's device plugin: a Role.
    PluginConfigs,
    /// In a namespace that every cluster has: a Role of this name.
    There {
        /// The namespace.
        namespace: &'static str,
        /// The Role.
        role: &'static str,
    },
}

/// One rule: all of these verbs on this resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Verbs, such as `watch`.
    pub verbs: &'static [&'static str],
    /// API group, empty for the core's.
    pub group: &'static str,
    /// Resource, with a subresource after a slash.
    pub resource: &'static str,
    /// Name of the only object that it covers.
    pub name: Option<&'static str>,
    /// Scope.
    pub place: Place,
    /// The optional feature that needs it; `None`: the program needs it.
    pub feature: Option<&'static str>,
    /// Purpose, in a few words.
    pub why: &'static str,
}

impl Line {
    /// A right in the whole cluster.
    pub const fn new(
        verbs: &'static [&'static str],
        group: &'static str,
        resource: &'static str,
        why: &'static str,
    ) -> Self {
        Self { verbs, group, resource, name: None, place: Place::Everywhere, feature: None, why }
    }

    /// Limits the line to a scope.
    #[must_use]
    pub const fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// Limits the line to one object.
    #[must_use]
    pub const fn named(self, name: &'static str) -> Self {
        Self { name: Some(name), ..self }
    }

    /// Marks the line as needed by an optional feature only.
    #[must_use]
    pub const fn only_for(self, feature: &'static str) -> Self {
        Self { feature: Some(feature), ..self }
    }
}

/// Names that a table leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Name of the program's `ClusterRole`, and of the Role in its namespace.
    pub role: &'static str,
    /// The program's namespace.
    pub home: String,
    /// Name of the Role for the layouts.
    pub layouts_role: &'static str,
    /// Namespace of the layouts.
    pub layouts: String,
    /// Name of the Role for the configs of NVIDIA's device plugin.
    pub plugin_configs_role: &'static str,
    /// Their namespace.
    pub plugin_configs: String,
}

/// One verb on one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Right {
    /// Verb.
    pub verb: &'static str,
    /// API group, empty for the core's.
    pub group: &'static str,
    /// Resource, with a subresource after a slash.
    pub resource: &'static str,
    /// Name of the only object that it covers.
    pub name: Option<String>,
    /// Namespace; `None`: everywhere.
    pub namespace: Option<String>,
    /// The role that grants it, such as `ClusterRole gputenancy-agent`.
    pub role: String,
    /// The optional feature that needs it.
    pub feature: Option<&'static str>,
    /// Purpose.
    pub why: &'static str,
}

/// The rights of a table, one for each verb.
pub fn rights(table: &[Line], setting: &Setting) -> Vec<Right> {
    let Setting { role, home, layouts_role, layouts, plugin_configs_role, plugin_configs } = setting;
    let of = |line: &Line| {
        let (namespace, role) = match line.place {
            Place::Everywhere => (None, format!("ClusterRole {role}")),
            Place::Home => (Some(home.clone()), format!("Role {role} of namespace {home}")),
            Place::There { namespace, role } => {
                (Some(namespace.to_owned()), format!("Role {role} of namespace {namespace}"))
            }
            Place::Layouts => (Some(layouts.clone()), format!("Role {layouts_role} of namespace {layouts}")),
            Place::PluginConfigs => {
                let role = format!("Role {plugin_configs_role} of namespace {plugin_configs}");
                (Some(plugin_configs.clone()), role)
            }
        };
        let Line { verbs, group, resource, name, feature, why, .. } = *line;
        let name = name.map(str::to_owned);
        verbs.iter().map(move |verb| Right {
            verb,
            group,
            resource,
            name: name.clone(),
            namespace: namespace.clone(),
            role: role.clone(),
            feature,
            why,
        })
    };
    table.iter().flat_map(of).collect()
}

impl Right {
    /// Resource, group and subresource, such as `gputenants.gputenancy.io/status`.
    pub fn what(&self) -> String {
        let Self { group, resource, .. } = self;
        let (resource, sub) =
            resource.split_once('/').map_or((*resource, String::new()), |(r, s)| (r, format!("/{s}")));
        if group.is_empty() { format!("{resource}{sub}") } else { format!("{resource}.{group}{sub}") }
    }

    /// The rule that grants it, as written in a role.
    pub fn rule(&self) -> String {
        let Self { verb, group, resource, name, .. } = self;
        let group = if group.is_empty() { "\"\"" } else { group };
        let names = name.as_ref().map(|n| format!(", resourceNames: [\"{n}\"]")).unwrap_or_default();
        format!("{{apiGroups: [{group}], resources: [{resource}]{names}, verbs: [{verb}]}}")
    }

    /// A message that the right is missing, with purpose and remedy.
    pub fn missing(&self) -> String {
        let Self { role, why, .. } = self;
        let only = self.feature.map(|f| format!(" (only for {f})")).unwrap_or_default();
        format!(
            "may not {self}, needed for {why}{only}: {role} lacks {}; run \"helm upgrade\" with the chart of this version, or add the rule",
            self.rule()
        )
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.what())?;
        if let Some(name) = &self.name {
            write!(f, " \"{name}\"")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Line] = &[
        Line::new(&["watch", "patch"], "gputenancy.io", "gputenants/status", "telling teams"),
        Line::new(&["get"], "coordination.k8s.io", "leases", "election").at(Place::Home).named("me"),
        Line::new(&["create"], "", "pods", "canary pods").at(Place::Layouts).only_for("canaries"),
    ];

    fn all() -> Vec<Right> {
        let (role, layouts_role) = ("operator", "mig");
        rights(
            TABLE,
            &Setting { role, home: "home".into(), layouts_role, layouts: "nvidia".into(), ..Setting::default() },
        )
    }

    #[test]
    fn line_yields_one_right_per_verb() {
        let said: Vec<String> = all().iter().map(ToString::to_string).collect();
        assert_eq!(
            said,
            [
                "watch gputenants.gputenancy.io/status",
                "patch gputenants.gputenancy.io/status",
                "get leases.coordination.k8s.io \"me\" in namespace home",
                "create pods in namespace nvidia",
            ]
        );
    }

    #[test]
    fn missing_right_names_role_rule_and_remedy() {
        let said: Vec<String> = all().iter().map(Right::missing).collect();
        let remedy = "; run \"helm upgrade\" with the chart of this version, or add the rule";
        let status = "may not patch gputenants.gputenancy.io/status, needed for telling teams: ClusterRole operator lacks \
                      {apiGroups: [gputenancy.io], resources: [gputenants/status], verbs: [patch]}";
        assert_eq!(said.get(1).unwrap(), &format!("{status}{remedy}"));
        let lease = "may not get leases.coordination.k8s.io \"me\" in namespace home, needed for election: Role operator of \
                     namespace home lacks {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [\"me\"], verbs: [get]}";
        assert_eq!(said.get(2).unwrap(), &format!("{lease}{remedy}"));
        assert!(said.get(3).unwrap().contains("canary pods (only for canaries): Role mig of namespace nvidia lacks"));
    }
}
