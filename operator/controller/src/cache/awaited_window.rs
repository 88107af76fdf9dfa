//! The maintenance window that planned changes of a pool wait for.

use gputenancy_crds::GpuPool;
use k8s_openapi::jiff::Timestamp;

/// Beginning of the message of a planned change that waits for a window; its time, or `never`, follows.
const NEXT_WINDOW: &str = "Pending: nextWindow=";

/// A maintenance window that planned changes of a pool wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AwaitedWindow {
    /// When it opens; `None`: no window of the pool opens.
    pub opens: Option<Timestamp>,
}

impl AwaitedWindow {
    /// From the status of a pool; `None`: no change waits for a window, or one is in progress.
    pub fn of(pool: &GpuPool) -> Option<Self> {
        let status = pool.status.as_ref()?;
        if status.changing.is_some_and(|changing| changing > 0) {
            return None;
        }
        let next = status.pending.iter().find_map(|change| change.message.strip_prefix(NEXT_WINDOW))?;
        // a reason may follow the time
        let time = next.split_once(',').map_or(next, |(time, _)| time);
        Some(Self { opens: time.parse().ok() })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn window_is_awaited_while_a_change_waits_for_it_and_none_is_in_progress() {
        let awaited = |message: &str, changing: i32| {
            let pool: GpuPool = serde_json::from_value(json!({
                "metadata": {"name": "p"},
                "spec": {"nodeSelector": {"matchLabels": {"x": "y"}}, "profiles": ["small"]},
                "status": {"changing": changing, "pending": [{"node": "n", "gpu": 0, "message": message}]},
            }))
            .unwrap();
            AwaitedWindow::of(&pool)
        };
        let opens = Some(AwaitedWindow { opens: Some("2026-12-05T01:00:00Z".parse().unwrap()) });
        assert_eq!(awaited("Pending: nextWindow=2026-12-05T01:00:00Z", 0), opens);
        let late = "Pending: nextWindow=2026-12-05T01:00:00Z, because the notice would outlast the present one";
        assert_eq!(awaited(late, 0), opens);
        assert_eq!(awaited("Pending: nextWindow=never", 0), Some(AwaitedWindow { opens: None }));
        assert_eq!(awaited("Pending: nextWindow=2026-12-05T01:00:00Z", 1), None);
        assert_eq!(awaited("Pending: waiting for the agent to report", 0), None);
    }
}
