//! The memory that containers on fractions have when the size of their profile changes.
//!
//! The files are opened only when devices or owners have changed, and while a container has another size than the layout: a container sees each
//! opening, and could free memory before the audit reads NVML.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    path::{Path, PathBuf},
    time::Duration,
};

use gputenancy_cluster::events::{EventType, Notice};
use gputenancy_crds::{MemoryText, RefusedResize, reasons};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::{ShareFiles, files::Size, sampling::pause};
use crate::{
    device::{Device, DeviceId, DeviceOwner, DeviceView, KubeletView, Owners},
    event::{self, Publish},
    send_if_changed,
};

/// After this time an event is given up.
const PUBLISH_LIMIT: Duration = Duration::from_secs(30);

/// The memory of one container on a fraction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareSize {
    /// What its programs may allocate now.
    pub memory: MemoryText,
    /// The container.
    pub owner: DeviceOwner,
    /// A smaller size that is refused.
    pub refused: Option<RefusedResize>,
    /// It has another size than the layout, and is checked again.
    pending: bool,
}

impl ShareSize {
    /// What a container has, and what is refused.
    pub fn new(memory: MemoryText, owner: DeviceOwner, refused: Option<RefusedResize>) -> Self {
        let pending = refused.is_some();
        Self { memory, owner, refused, pending }
    }
}

/// The memory of containers, by device.
pub type ShareSizes = BTreeMap<DeviceId, ShareSize>;

/// Gives containers the new size of their fraction.
pub struct Resizer {
    /// Folder of the shares' files.
    pub shares: PathBuf,
    /// The devices of this node.
    pub view: watch::Receiver<DeviceView>,
    /// Their owners.
    pub kubelet: watch::Receiver<KubeletView>,
    /// The memory of containers.
    pub sizes: watch::Sender<ShareSizes>,
    /// Publishes events.
    pub publish: Publish,
    /// Name of the node.
    pub node: String,
}

impl Resizer {
    /// Reconciles for as long as it is polled, and reports the sizes.
    pub async fn run(mut self) {
        let mut known = (Vec::new(), Owners::new());
        loop {
            let now = (self.view.borrow_and_update().devices.clone(), self.kubelet.borrow_and_update().owners.clone());
            let before = self.sizes.borrow().clone();
            let pending = before.values().any(|size| size.pending);
            if now != known || pending {
                let next = sizes(&now.0, &now.1, &self.shares, &before);
                for (id, size) in newly_refused(&before, &next) {
                    tokio::spawn(timeout(PUBLISH_LIMIT, (self.publish)(notice(&self.node, id, size))));
                }
                known = now;
                send_if_changed(&self.sizes, next);
            }
            let pending = self.sizes.borrow().values().any(|size| size.pending);
            tokio::select! {
                Ok(()) = self.view.changed() => {}
                Ok(()) = self.kubelet.changed() => {}
                () = sleep(pause(RandomState::new().hash_one(()))), if pending => {}
                else => return,
            }
        }
    }
}

/// Gives each container its size, and returns what they have. Of a refusal that goes on the numbers of its begin stay, so that the status does
/// not change with each allocation.
fn sizes(devices: &[Device], owners: &Owners, folder: &Path, before: &ShareSizes) -> ShareSizes {
    let size = |device: &Device| {
        let owner = owners.get(&device.id)?.clone();
        let Size { present, wanted, held } = ShareFiles::of(device, folder)?.follow(device)?;
        let known = before.get(&device.id).filter(|known| known.owner == owner);
        let refused = (present > wanted && held > wanted && !super::files::is_forced(device)).then(|| {
            let memory = text(wanted);
            let again = known.and_then(|known| known.refused.clone()).filter(|refused| refused.memory == memory);
            again.unwrap_or_else(|| RefusedResize { memory, used: text(held) })
        });
        let size = ShareSize::new(text(present), owner, refused);
        Some((device.id.clone(), ShareSize { pending: present != wanted, ..size }))
    };
    devices.iter().filter_map(size).collect()
}

/// The refusals that were not there before.
fn newly_refused<'s>(
    before: &'s ShareSizes,
    now: &'s ShareSizes,
) -> impl Iterator<Item = (&'s DeviceId, &'s ShareSize)> {
    let known = |id: &DeviceId, size: &ShareSize| {
        before.get(id).is_some_and(|known| known.owner == size.owner && known.refused == size.refused)
    };
    now.iter().filter(move |(id, size)| size.refused.is_some() && !known(id, size))
}

/// The event for the team whose container keeps its size.
fn notice(node: &str, id: &DeviceId, ShareSize { memory, owner, refused, .. }: &ShareSize) -> Notice {
    let RefusedResize { memory: wanted, used } = refused.clone().unwrap_or_default();
    let text = format!(
        "container {} holds {used} on share {id} of node {node}, more than the new memory {wanted} of its GpuProfile: it keeps its limit of {memory}; let it free memory or restart the pod, or set device.fraction.resize: Force in the GpuProfile",
        owner.container,
    );
    Notice {
        regarding: event::pod(owner),
        event_type: EventType::Warning,
        reason: reasons::SHARE_RESIZE_REFUSED,
        action: "Report".to_owned(),
        note: text,
    }
}

/// Rounded up: the planner counts no less than what a container has.
fn text(bytes: u64) -> MemoryText {
    MemoryText::from_mib(i64::try_from(bytes.div_ceil(1 << 20)).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use gputenancy_crds::{CONTEXT_MIB, ResizePolicy, SharingMode};
    use gputenancy_ledger::{Ledger, Mapped, Usage};

    use super::*;
    use crate::{device::Share, mps::share::tests::device};

    fn fraction(mib: i64, resize: ResizePolicy) -> Device {
        let device = device(0, SharingMode::Fraction, Some(mib), None);
        Device { share: device.share.map(|share| Share { limit_mib: Some(mib), resize, ..share }), ..device }
    }

    fn owner(pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: "team".into(), pod: pod.into(), container: "main".into() }
    }

    #[tokio::test]
    async fn refusal_is_reported_once_with_its_numbers_and_ends_with_force() {
        let root = tempfile::tempdir().unwrap();
        let first = fraction(1000, ResizePolicy::WhenFree);
        let files = ShareFiles::of(&first, root.path()).unwrap();
        files.renew(&first).unwrap();
        let usage = Mapped::<Usage>::open(&files.usage).unwrap();
        let ledger = Ledger::join(&usage).unwrap();
        let bytes = |mib: i64| u64::try_from(mib).unwrap() << 20;
        ledger.reserve(bytes(CONTEXT_MIB + 700), u64::MAX).unwrap();
        let view = watch::Sender::new(DeviceView { devices: vec![first.clone()], ..DeviceView::default() });
        let owners = Owners::from([(first.id.clone(), owner("train-0"))]);
        let kubelet = watch::Sender::new(KubeletView { owners, ..KubeletView::default() });
        let notes = Arc::new(Mutex::new(Vec::new()));
        let published = Arc::clone(&notes);
        let publish: Publish = Arc::new(move |notice| {
            published.lock().unwrap().push(notice.note);
            Box::pin(async {})
        });
        let (sizes, id) = (watch::Sender::new(ShareSizes::new()), first.id.clone());
        let mut seen = sizes.subscribe();
        let resizer = Resizer {
            shares: root.path().into(),
            view: view.subscribe(),
            kubelet: kubelet.subscribe(),
            sizes,
            publish,
            node: "gpu-1".into(),
        };
        tokio::spawn(resizer.run());
        let resize = |mib: i64, policy| view.send_modify(|view| view.devices = vec![fraction(mib, policy)]);
        let mut wait = async |memory: i64, refused: Option<(i64, i64)>| {
            let refused = refused.map(|(memory, used)| RefusedResize {
                memory: MemoryText::from_mib(memory),
                used: MemoryText::from_mib(used),
            });
            let is = |size: &ShareSize| size.memory == MemoryText::from_mib(memory) && size.refused == refused;
            seen.wait_for(|sizes| sizes.get(&id).is_some_and(is)).await.unwrap();
        };
        wait(1000, None).await;
        resize(1200, ResizePolicy::WhenFree);
        wait(1200, None).await;
        resize(500, ResizePolicy::WhenFree);
        wait(1200, Some((500, 700))).await;
        ledger.release(bytes(100));
        resize(550, ResizePolicy::WhenFree);
        wait(1200, Some((550, 600))).await;
        resize(500, ResizePolicy::Force);
        wait(600, None).await;
        ledger.release(bytes(200));
        wait(500, None).await;
        let notes = notes.lock().unwrap().clone();
        assert_eq!(notes.len(), 2, "{notes:?}");
        insta::assert_snapshot!(notes[0], @"container main holds 700Mi on share GPU-a::0 of node gpu-1, more than the new memory 500Mi of its GpuProfile: it keeps its limit of 1200Mi; let it free memory or restart the pod, or set device.fraction.resize: Force in the GpuProfile");
    }

    #[test]
    fn numbers_of_a_refusal_stay_for_its_container_and_are_new_for_the_next() {
        let size = |pod: &str, used: i64| {
            let refused = RefusedResize { memory: MemoryText::from_mib(500), used: MemoryText::from_mib(used) };
            ShareSize::new(MemoryText::from_mib(1000), owner(pod), Some(refused))
        };
        let of = |size: ShareSize| ShareSizes::from([(DeviceId::share("GPU-a", 0), size)]);
        let new = |before: ShareSizes, now: ShareSizes| newly_refused(&before, &now).count();
        assert_eq!(new(ShareSizes::new(), of(size("a", 700))), 1);
        assert_eq!(new(of(size("a", 700)), of(size("a", 700))), 0);
        assert_eq!(new(of(size("a", 700)), of(size("b", 700))), 1);
        assert_eq!(new(of(size("a", 700)), of(ShareSize { refused: None, ..size("a", 700) })), 0);
    }
}
