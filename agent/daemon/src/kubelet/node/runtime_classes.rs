//! `RuntimeClasses` of the cluster, by which a pod names a handler of its node's container runtime.

use std::collections::BTreeMap;

use futures::StreamExt;
use gputenancy_cluster::watch::{FanOut, Published, Restarts, events};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::{Api, Client, ResourceExt as _, runtime::watcher};
use tokio::sync::watch;

use crate::LONGEST_WATCH_DELAY;

/// Handlers by name of the `RuntimeClass`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeClasses(pub BTreeMap<String, String>);

impl RuntimeClasses {
    /// Records a class; true if its handler changed.
    fn apply(&mut self, class: &RuntimeClass) -> bool {
        self.0.insert(class.name_any(), class.handler.clone()).as_ref() != Some(&class.handler)
    }

    /// Removes a class; true if it was recorded.
    fn delete(&mut self, class: &RuntimeClass) -> bool {
        self.0.remove(&class.name_any()).is_some()
    }

    /// The handler of a class. One that is not known, as without the right to read them, counts as named after its handler.
    pub fn handler<'a>(&'a self, class: &'a str) -> &'a str {
        self.0.get(class).map_or(class, String::as_str)
    }
}

/// Whether the agent has no right to read `RuntimeClasses`.
fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.is_forbidden(),
        _ => false,
    }
}

/// Takes a failure of the watch: without the right to read them no class is known. After another failure the classes that were known stay so.
fn fail(classes: &watch::Sender<Option<RuntimeClasses>>, error: &watcher::Error) {
    let forbidden = is_forbidden(error);
    classes.send_if_modified(|known| {
        let first = forbidden && known.is_none();
        if first {
            *known = Some(RuntimeClasses::default());
        }
        first
    });
}

/// Watches for as long as it is polled. The classes are `None` until they are listed.
pub async fn watch(client: Client, classes: watch::Sender<Option<RuntimeClasses>>) {
    let api = Api::<RuntimeClass>::all(client);
    let mut events = events(api, watcher::Config::default(), LONGEST_WATCH_DELAY).boxed();
    let mut restarts = Restarts::new("runtimeclasses").meanwhile(
        "without the right to read them each counts as named after its handler, else pods that name one get no limited share before they are read",
    );
    let mut sinks = FanOut::default().to(Published::new(&classes, RuntimeClasses::apply, RuntimeClasses::delete));
    while let Some(event) = events.next().await {
        if let Err(error) = &event {
            fail(&classes, error);
        }
        if let Some(event) = restarts.note(event) {
            sinks.pass(&event, |class| class);
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn classes_are_unknown_until_they_are_listed_or_reading_them_is_forbidden() {
        let error = |reason: &str, code| Box::new(Status::failure("refused", reason).with_code(code));
        let classes = watch::Sender::new(None);
        fail(&classes, &watcher::Error::WatchError(error("ServiceUnavailable", 503)));
        fail(&classes, &watcher::Error::WatchStartFailed(kube::Error::Api(error("InternalError", 500))));
        fail(&classes, &watcher::Error::NoResourceVersion);
        assert_eq!(*classes.borrow(), None);
        let forbidden = watcher::Error::WatchStartFailed(kube::Error::Api(error("Forbidden", 403)));
        fail(&classes, &forbidden);
        assert_eq!(*classes.borrow(), Some(RuntimeClasses::default()));
        let listed = RuntimeClasses([("c".to_owned(), "runsc".to_owned())].into());
        classes.send_replace(Some(listed.clone()));
        fail(&classes, &forbidden);
        assert_eq!(*classes.borrow(), Some(listed), "what was known stays");
    }
}
