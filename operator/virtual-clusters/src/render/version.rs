//! Which versions of vCluster may follow each other. Pure.

use super::RenderError;
use crate::args::{Chart, Charts};

/// The chart of the wanted version, if it may follow the running one: the same, a later patch, or the next minor version. vCluster migrates
/// its data at the start and does not support going back, nor leaving out a minor version.
pub fn choose<'a>(charts: &'a Charts, wanted: &str, running: Option<&str>) -> Result<&'a Chart, RenderError> {
    let Some(chart) = charts.0.get(wanted) else {
        let supported = charts.0.keys().cloned().collect();
        return Err(RenderError::NotSupported { wanted: wanted.into(), supported });
    };
    let Some((running, (from, to))) = running.and_then(|r| Some((r, (parse(r)?, parse(wanted)?)))) else {
        return Ok(chart);
    };
    let refused = |why: String| RenderError::VersionRefused { wanted: wanted.into(), running: running.into(), why };
    if to < from {
        return Err(refused(
            "its data cannot be read by an earlier version; restore a snapshot into a new virtual cluster instead"
                .into(),
        ));
    }
    let (next_minor, same_minor) = (to[0] == from[0] && to[1] == from[1] + 1, to[..2] == from[..2]);
    if !same_minor && !next_minor {
        return Err(refused(format!("raise it one minor version at a time, first to a {}.{}", from[0], from[1] + 1)));
    }
    Ok(chart)
}

fn parse(version: &str) -> Option<[u32; 3]> {
    let numbers: Vec<u32> = version.split('.').map(|n| n.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charts() -> Charts {
        let chart = |v: &str| {
            (v.to_owned(), Chart { version: v.into(), file: "/c.tgz".into(), sha256: String::new(), url: None })
        };
        Charts(["0.35.3", "0.36.1", "0.37.0", "1.0.0"].map(chart).into())
    }

    #[test]
    fn versions_go_up_one_minor_at_a_time() {
        let ok = |wanted, running| choose(&charts(), wanted, running).is_ok();
        assert!(ok("0.36.1", None) && ok("0.36.1", Some("0.36.1")) && ok("0.36.1", Some("0.36.0")));
        assert!(ok("0.36.1", Some("0.35.9")) && ok("0.37.0", Some("0.36.1")));
        assert!(!ok("0.35.3", Some("0.36.1")) && !ok("0.37.0", Some("0.35.3")) && !ok("1.0.0", Some("0.37.0")));
    }

    #[test]
    fn refusals_name_what_is_possible() {
        let refusal = |wanted, running| choose(&charts(), wanted, running).unwrap_err().to_string();
        assert_eq!(
            refusal("0.34.0", None),
            "spec.virtualCluster.version: 0.34.0 is not supported; choose one of 0.35.3, 0.36.1, 0.37.0, 1.0.0"
        );
        assert!(
            refusal("0.37.0", Some("0.35.3")).ends_with("first to a 0.36"),
            "{}",
            refusal("0.37.0", Some("0.35.3"))
        );
        assert!(refusal("0.35.3", Some("0.36.1")).contains("restore a snapshot"));
    }
}
