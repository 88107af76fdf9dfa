//! The layouts for NVIDIA's MIG manager, read from texts with random content.

use std::collections::BTreeMap;

use fuzz::{Choices, check, check_slow, damaged, mutated, prop_assert, prop_assert_eq, tree};
use gputenancy_decisions::partitioner::{MigConfig, MigConfigs, Shape, twin};
use serde_json::{Value, json};

fn shape(choices: &mut Choices) -> Shape {
    let profiles = ["1g.10gb", "1g.10gb+me", "1g.24gb-me", "2g.20gb", "3g.40gb", "7g.80gb"];
    let mig = choices.once_in(2);
    let one = |choices: &mut Choices| {
        let profile = choices.pick(&profiles).copied().unwrap_or_default().to_owned();
        (profile, u32::try_from(choices.below(7)).unwrap() + 1)
    };
    let counts: BTreeMap<_, _> = (0..choices.below(4)).map(|_| one(choices)).collect();
    Shape { mig, counts: if mig { counts } else { BTreeMap::new() } }
}

fn layouts(choices: &mut Choices) -> Vec<MigConfig> {
    let layout = |choices: &mut Choices| {
        let shapes: Vec<_> = (0..=choices.below(3)).map(|_| shape(choices)).collect();
        MigConfig::new(&shapes)
    };
    (0..choices.below(3)).map(|_| layout(choices)).collect()
}

fn configs(layouts: &[MigConfig]) -> MigConfigs {
    let mut all = MigConfigs::default();
    for layout in layouts {
        all.add(layout);
    }
    all
}

#[test]
fn written_layouts_are_read_without_loss() {
    check_slow("layouts", |choices, times| {
        let all = configs(&layouts(choices));
        let text = all.render().unwrap();
        let read = times.decoder(|| MigConfigs::parse(&text));
        drop(times.baseline(|| serde_saphyr::from_str::<Value>(&text)));
        prop_assert_eq!(read, all);
        Ok(())
    });
}

#[test]
fn unreadable_layout_is_named_and_the_others_are_kept() {
    check_slow("a wrong layout", |choices, times| {
        let layouts = layouts(choices);
        let mut document: Value = serde_saphyr::from_str(&configs(&layouts).render().unwrap()).unwrap();
        let wrong = json!({"devices": {"all": tree(choices, 2)}, "mig-enabled": 1});
        document["mig-configs"]["by-hand"] = wrong;
        document["mig-configs"]["newer"] = json!([{"device-filter": ["0x1"], "devices": "all", "mig-enabled": false}]);
        document["from-a-newer-release"] = tree(choices, 2);
        let read = times.decoder(|| MigConfigs::parse(&serde_saphyr::to_string(&document).unwrap()));
        for layout in &layouts {
            prop_assert!(read.has(&layout.name()) && read.has(&twin(&layout.name())));
        }
        prop_assert!(read.has("newer") && !read.has("by-hand"));
        let [error] = read.unreadable() else { panic!("{:?}", read.unreadable()) };
        prop_assert!(error.starts_with("layout by-hand: ") && error.len() > 30, "{error}");
        let mut wanted = configs(&layouts);
        wanted.keep(&read, "newer");
        prop_assert!(wanted != read, "it is replaced");
        Ok(())
    });
}

#[test]
fn broken_text_is_an_error_with_a_text() {
    check("broken layouts", |choices, times| {
        let text = configs(&layouts(choices)).render().unwrap();
        let text = match choices.below(3) {
            0 => serde_saphyr::to_string(&tree(choices, 4)).unwrap_or_default(),
            1 => {
                let document: Value = serde_saphyr::from_str(&text).unwrap();
                serde_saphyr::to_string(&mutated(document, choices)).unwrap_or_default()
            }
            _ => String::from_utf8_lossy(&damaged(text.into_bytes(), choices)).into_owned(),
        };
        let read = times.decoder(|| MigConfigs::parse(&text));
        prop_assert!(read.unreadable().iter().all(|error| error.len() > 10), "{:?}: {text}", read.unreadable());
        if read.unreadable().is_empty() {
            prop_assert_eq!(MigConfigs::parse(&read.render().unwrap()), read);
        }
        Ok(())
    });
}

#[test]
fn deeply_nested_text_is_an_error() {
    for text in ["[".repeat(100_000), "- ".repeat(100_000)] {
        assert_eq!(MigConfigs::parse(&text).unreadable().len(), 1);
    }
}
