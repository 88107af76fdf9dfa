//! Rules and dashboards as the chart renders them: off by default, valid, and with a page for each alert.

use std::{collections::BTreeSet, fs, process::Command};

use e2e::product;
use serde_json::Value;

use super::{chart::rendered, objects};

const RULES: [&str; 3] = [
    "prometheusRules.enabled=true",
    "virtualClusters.enabled=true",
    "prometheusRules.runbookUrl=https://wiki/runbooks/",
];

fn rules(sets: &[&str]) -> Vec<Value> {
    let objects = objects(&rendered("prometheus-rules.yaml", sets));
    let groups = objects.iter().flat_map(|object| object["spec"]["groups"].as_array().unwrap().clone());
    groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

#[test]
fn each_alert_has_a_severity_two_texts_and_a_runbook_that_exists() {
    let rules = rules(&RULES);
    let alerts: Vec<&Value> = rules.iter().filter(|rule| rule["alert"].is_string()).collect();
    assert!(alerts.len() >= 30, "{} alerts", alerts.len());
    let mut names = BTreeSet::new();
    for alert in alerts {
        let name = alert["alert"].as_str().unwrap();
        let text = |of: &Value| of.as_str().map(str::to_owned).unwrap_or_default();
        // of a development pool it is info
        let severity = text(&alert["labels"]["severity"]);
        assert!(["critical", "warning", "info", "{{"].iter().any(|start| severity.starts_with(start)), "{alert}");
        assert!(!text(&alert["annotations"]["summary"]).is_empty(), "{alert}");
        assert!(!text(&alert["annotations"]["description"]).is_empty(), "{alert}");
        let url = text(&alert["annotations"]["runbook_url"]);
        assert_eq!(url, format!("https://wiki/runbooks/{name}.md"));
        let page = product::root().join(format!("docs/runbooks/{name}.md"));
        let page = fs::read_to_string(&page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
        for heading in [&format!("# {name}\n"), "## Meaning\n", "## Impact\n", "## Diagnosis\n", "## Mitigation\n"] {
            assert!(page.contains(heading), "{name}: no {heading}");
        }
        names.insert(format!("{name}.md"));
    }
    let pages = fs::read_dir(product::root().join("docs/runbooks")).unwrap();
    let pages = pages.map(|page| page.unwrap().file_name().into_string().unwrap());
    let pages: BTreeSet<String> = pages.filter(|page| page != "README.md").collect();
    assert_eq!(pages.difference(&names).collect::<Vec<_>>(), Vec::<&String>::new(), "runbooks without an alert");
}

#[test]
fn rules_follow_the_release_and_the_development_pools() {
    let of_pools = rules(&["prometheusRules.enabled=true", "prometheusRules.developmentPools=lab-.*"]);
    let text = serde_json::to_string(&of_pools).unwrap();
    assert!(text.contains("lab-.*") && !text.contains("dev-.*"), "{text}");
    assert!(objects(&rendered("", &[])).iter().all(|object| object["kind"] != "PrometheusRule"), "off by default");
}

#[test]
fn dashboards_are_config_maps_that_a_sidecar_finds_and_the_generator_wrote_them() {
    let boards = objects(&rendered("dashboards.yaml", &["dashboards.enabled=true", "dashboards.namespace=grafana"]));
    assert_eq!(boards.len(), 5);
    let mut uids = BTreeSet::new();
    for board in &boards {
        assert_eq!(board["metadata"]["labels"]["grafana_dashboard"], "1");
        assert_eq!(board["metadata"]["namespace"], "grafana");
        for json in board["data"].as_object().unwrap().values() {
            let json: Value = serde_json::from_str(json.as_str().unwrap()).unwrap();
            assert!(uids.insert(json["uid"].as_str().unwrap().to_owned()), "{}", json["uid"]);
        }
    }
    assert!(
        objects(&rendered("", &[])).iter().all(|object| object["data"].get("fleet.json").is_none()),
        "off by default"
    );
    for (script, argument) in [("generate", Some("--check")), ("check", None)] {
        let mut command = Command::new("python3");
        command.arg(product::root().join("integration/tools/dashboards").join(script)).args(argument);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&text));
    }
}
