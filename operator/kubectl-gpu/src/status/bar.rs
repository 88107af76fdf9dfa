//! The slices of a GPU to scale: its devices in the order of their places, and between them the slices that no device has.

use std::{collections::BTreeMap, ops::Range};

use gputenancy_crds::{GpuSpec, GpuState, InstanceState, SharingMode, slice_of};
use gputenancy_plan::board::BoardGeometry;

use super::{
    model::{DeviceStatus, SliceBar, SlicePart, SliceState, StateWeight},
    unallocated::{Offers, Rest},
};

/// Most compute slices of a MIG profile.
const MOST_SLICES: i32 = 8;

/// A GPU with its board, its devices and what they leave.
#[derive(Clone, Copy)]
pub(super) struct GpuSlices<'a> {
    /// `None`: the platform does not manage it.
    pub spec: Option<&'a GpuSpec>,
    pub state: &'a GpuState,
    /// `None`: the agent has not reported it.
    pub board: Option<&'a BoardGeometry>,
    /// `None`: no pool selects its node, or several do.
    pub offers: Option<&'a Offers<'a>>,
    pub devices: &'a [DeviceStatus],
    pub rest: &'a Rest,
    /// A new pod could get a further device of it.
    pub available: bool,
}

impl GpuSlices<'_> {
    /// The bar of the GPU. Its parts add up to the slices of the board in every layout.
    pub fn bar(self) -> SliceBar {
        let instances = &self.state.instances;
        let mig = self.state.mig.is_some_and(|mig| mig.enabled) || !instances.is_empty();
        if !mig {
            return self.undivided();
        }
        let has_places = |board: &&BoardGeometry| {
            let places = instances.iter().map(|instance| (instance.profile.as_str(), instance.start));
            board.memory_slices > 0 && board.fits(places)
        };
        self.board.filter(has_places).map_or_else(|| self.by_order(), |board| self.by_place(board))
    }

    /// Instances at their places on the axis of memory slices.
    fn by_place(self, board: &BoardGeometry) -> SliceBar {
        let mut instances: Vec<&InstanceState> = self.state.instances.iter().collect();
        instances.sort_by_key(|instance| instance.start);
        let (mut parts, mut at) = (Vec::new(), 0);
        for instance in instances {
            let size = board.profile(&instance.profile).map_or(0, |profile| profile.size);
            self.gap(&mut parts, at..instance.start);
            parts.push(self.instance(instance, size));
            at = instance.start + size;
        }
        self.gap(&mut parts, at..board.memory_slices);
        SliceBar { total: board.memory_slices, parts, stranded_compute_slices: self.rest.stranded_compute }
    }

    /// Memory slices that no device has, neighbours of one state joined.
    fn gap(self, parts: &mut Vec<SlicePart>, slices: Range<i32>) {
        for slice in slices {
            let part = self.rest.parts.iter().find(|part| part.memory_slices.contains(&slice));
            let state = self.state_without_device(part.map(|part| part.stranded));
            match parts.last_mut() {
                Some(SlicePart { device: None, slices, states }) if states.iter().all(|s| s.state == state) => {
                    *slices += 1;
                }
                _ => parts.push(without_device(1, state)),
            }
        }
    }

    /// Instances in the order of the status, by compute slices: the board does not list one of them, so that its memory slices are not known.
    fn by_order(self) -> SliceBar {
        let compute = |instance: &InstanceState| {
            let known = self.board.and_then(|board| board.profile(&instance.profile));
            known.map_or_else(|| leading_number(&instance.profile), |profile| profile.slices)
        };
        let instances = self.state.instances.iter();
        let mut parts: Vec<SlicePart> = instances.map(|i| self.instance(i, compute(i))).collect();
        let used: i32 = parts.iter().map(|part| part.slices).sum();
        let total = self.board.map_or(0, |board| board.slices).max(used).max(1);
        if used < total {
            let fits = |offers: &Offers<'_>| offers.smallest().is_some_and(|least| least <= total - used);
            let stranded = self.offers.map(|offers| !fits(offers));
            parts.push(without_device(total - used, self.state_without_device(stranded)));
        }
        SliceBar { total, parts, stranded_compute_slices: 0 }
    }

    /// An instance, with the states of its time-slices if it is shared.
    fn instance(self, instance: &InstanceState, slices: i32) -> SlicePart {
        let devices = self.devices.iter().filter(|device| slice_of(device.start).0 == instance.start);
        let states = self.weighted(devices.map(|device| (SliceState::from(device.state), 1)));
        SlicePart { device: Some(instance.profile.clone()), slices, states }
    }

    /// The whole GPU or its shares as one part.
    fn undivided(self) -> SliceBar {
        let total = self.board.map_or(1, |board| board.memory_slices.max(1));
        let sharing = self.spec.and_then(|spec| spec.sharing.as_ref());
        let device = match sharing.map(|sharing| sharing.mode) {
            _ if self.devices.is_empty() => None,
            _ if self.state.shares.is_empty() => Some("whole GPU"),
            Some(SharingMode::TimeSlice) => Some("time-slices"),
            Some(SharingMode::Mps) => Some("MPS shares"),
            Some(SharingMode::Fraction) => Some("fractions"),
            None => Some("shares"),
        };
        let percent =
            |device: &DeviceStatus| -> Option<i32> { Some(sharing?.group_of(device.start)?.compute?.clamp(1, 100)) };
        let percents: Option<Vec<i32>> = self.devices.iter().map(percent).collect();
        let states = self.devices.iter().map(|device| SliceState::from(device.state));
        let states = match percents.filter(|percents| !percents.is_empty()) {
            Some(percents) => {
                let rest = self.rest.parts.iter().filter_map(|part| {
                    let percent = part.compute_percent.filter(|percent| *percent > 0)?;
                    Some((self.state_without_device(Some(part.stranded)), percent))
                });
                self.weighted(states.zip(percents).chain(rest))
            }
            // shares without a compute of their own are equal
            None => self.weighted(states.map(|state| (state, 1))),
        };
        let part = SlicePart { device: device.map(str::to_owned), slices: total, states };
        SliceBar { total, parts: vec![part], stranded_compute_slices: 0 }
    }

    /// The state of slices that no device has. `stranded`: no profile of the pool can use them; `None` if that is not known.
    fn state_without_device(self, stranded: Option<bool>) -> SliceState {
        match stranded {
            _ if self.spec.is_none() => SliceState::Unmanaged,
            Some(true) => SliceState::Stranded,
            Some(false) if self.available => SliceState::Free,
            _ => SliceState::Withdrawn,
        }
    }

    /// Each state once, with the sum of its weights.
    fn weighted(self, states: impl Iterator<Item = (SliceState, i32)>) -> Vec<StateWeight> {
        let mut sums: BTreeMap<SliceState, i32> = BTreeMap::new();
        for (state, weight) in states {
            *sums.entry(state).or_default() += weight;
        }
        if sums.is_empty() {
            // an instance that is being created or destroyed, or a GPU whose mode is changing
            sums.insert(self.state_without_device(None), 1);
        }
        sums.into_iter().map(|(state, weight)| StateWeight { state, weight }).collect()
    }
}

fn without_device(slices: i32, state: SliceState) -> SlicePart {
    SlicePart { device: None, slices, states: vec![StateWeight { state, weight: 1 }] }
}

/// Compute slices of a MIG profile by its name: 1 of `1g.5gb` and of `1g.5gb+me`.
fn leading_number(profile: &str) -> i32 {
    let digits = profile.split_once('g').map_or("", |(digits, _)| digits);
    digits.parse().map_or(1, |slices: i32| slices.clamp(1, MOST_SLICES))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use gputenancy_crds::{MigMode, ShareState};
    use gputenancy_plan::Snapshot;
    use serde_json::{Value, json};

    use super::{super::model::DeviceState, *};
    use crate::{
        input::{Text, documents},
        world::World,
    };

    use DeviceState::{Free, Unmanaged, Used, Withdrawn};

    /// The profiles of the fleet, and the board of its first node, an A100 with 80 GB.
    static FLEET: LazyLock<(Snapshot, BoardGeometry)> = LazyLock::new(|| {
        let text = include_str!("../../tests/fixtures/sharing.yaml");
        let world = World::of(documents(&[Text { name: "sharing.yaml".into(), text: text.into() }]).unwrap());
        let status = world.fleet.gpu_nodes["gpu-1"].status.as_ref().unwrap();
        let board = BoardGeometry::from(&status.boards[0]);
        let (snapshot, _) = Snapshot::read(&world.fleet.cluster());
        (snapshot, board)
    });

    fn device(start: i32, state: DeviceState) -> DeviceStatus {
        let fields = json!({"device": "", "start": start, "resource": "", "state": state, "processes": 0});
        serde_json::from_value(fields).unwrap()
    }

    fn state(instances: &[(&str, i32)]) -> GpuState {
        let instance = |(profile, start): &(&str, i32)| InstanceState {
            start: *start,
            profile: (*profile).into(),
            ..InstanceState::default()
        };
        let mig = Some(MigMode { enabled: true, pending: None });
        GpuState { mig, instances: instances.iter().map(instance).collect(), ..GpuState::default() }
    }

    /// Parts as text: the device, and a character for each slice by the first state; then the stranded compute slices.
    fn text(bar: &SliceBar) -> String {
        let part = |part: &SlicePart| {
            let name = part.device.as_ref().map(|device| format!("{device}:")).unwrap_or_default();
            let mark = match part.states[0].state {
                SliceState::Used => "#",
                SliceState::Free => ".",
                SliceState::Withdrawn => "x",
                SliceState::Stranded => "-",
                SliceState::Unmanaged => "~",
            };
            format!("{name}{}", mark.repeat(usize::try_from(part.slices).unwrap()))
        };
        let parts: Vec<String> = bar.parts.iter().map(part).collect();
        format!("{} +{}", parts.join("|"), bar.stranded_compute_slices)
    }

    /// The bar of a managed GPU with these instances and states of devices, in a pool with these profiles.
    fn bar(instances: &[(&str, i32)], devices: &[(i32, DeviceState)], profiles: &[&str], available: bool) -> SliceBar {
        let (snapshot, board) = &*FLEET;
        let profiles: Vec<String> = profiles.iter().map(|name| (*name).to_owned()).collect();
        let offers = Offers::of(snapshot, &profiles, board);
        let (spec, state) = (GpuSpec { mig: true, ..GpuSpec::default() }, state(instances));
        let rest = offers.rest(&spec, &state);
        let devices: Vec<DeviceStatus> = devices.iter().map(|(start, state)| device(*start, *state)).collect();
        GpuSlices {
            spec: Some(&spec),
            state: &state,
            board: Some(board),
            offers: Some(&offers),
            devices: &devices,
            rest: &rest,
            available,
        }
        .bar()
    }

    #[test]
    fn bar_has_instances_at_their_places_and_the_rest_by_what_the_pool_can_use() {
        type Case<'a> = (&'a [(&'a str, i32)], &'a [(i32, DeviceState)], &'a [&'a str], &'a str);
        let seven: Vec<(&str, i32)> = (0..7).map(|start| ("1g.10gb", start)).collect();
        let free: Vec<(i32, DeviceState)> = (0..7).map(|start| (start, Free)).collect();
        let cases: &[Case<'_>] = &[
            (
                &[("3g.40gb", 4), ("1g.10gb", 0), ("1g.10gb", 1)],
                &[(0, Used), (1, Free), (4, Withdrawn)],
                &["mig-1g", "mig-3g"],
                "1g.10gb:#|1g.10gb:.|..|3g.40gb:xxxx +0",
            ),
            (
                &[("1g.10gb", 0), ("1g.10gb", 1), ("3g.40gb", 4)],
                &[(0, Used), (1, Free), (4, Free)],
                &["mig-3g"],
                "1g.10gb:#|1g.10gb:.|--|3g.40gb:.... +2",
            ),
            // the second half can have 3g; three memory slices and three compute slices cannot be used
            (&[("1g.10gb", 0)], &[(0, Used)], &["mig-3g"], "1g.10gb:#|---|.... +3"),
            (
                &seven,
                &free,
                &["mig-1g", "mig-3g"],
                "1g.10gb:.|1g.10gb:.|1g.10gb:.|1g.10gb:.|1g.10gb:.|1g.10gb:.|1g.10gb:.|- +0",
            ),
            // one compute slice has no memory slice
            (&[("3g.40gb", 0), ("3g.40gb", 4)], &[(0, Used), (4, Free)], &["mig-1g"], "3g.40gb:####|3g.40gb:.... +1"),
            (&[("7g.80gb", 0)], &[(0, Used)], &["mig-1g"], "7g.80gb:######## +0"),
            // an empty GPU can become a whole one
            (&[], &[], &["mig-3g", "gpu"], "........ +0"),
            (&[], &[], &["mig-3g"], "........ +1"),
            (&[], &[], &[], "-------- +7"),
            // an instance without a device is being created or destroyed
            (&[("3g.40gb", 4)], &[], &["mig-3g"], "....|3g.40gb:xxxx +1"),
        ];
        for (instances, devices, profiles, expected) in cases {
            assert_eq!(text(&bar(instances, devices, profiles, true)), *expected, "{instances:?} {profiles:?}");
        }
    }

    #[test]
    fn slices_without_a_device_are_withdrawn_while_the_gpu_gets_no_new_pods() {
        let bar = bar(&[("1g.10gb", 0)], &[(0, Used)], &["mig-3g"], false);
        assert_eq!(text(&bar), "1g.10gb:#|---|xxxx +3");
    }

    #[test]
    fn parts_of_every_layout_add_up_to_the_slices_of_the_board() {
        let (_, board) = &*FLEET;
        let profiles = board.profiles.iter();
        let items = profiles.flat_map(|profile| profile.starts.iter().map(|start| (profile.name.as_str(), *start)));
        let mut layouts: Vec<Vec<(&str, i32)>> = vec![Vec::new()];
        for item in items {
            let larger = layouts.iter().map(|layout| [layout.as_slice(), &[item]].concat());
            let larger: Vec<_> = larger.filter(|layout| board.fits(layout.iter().copied())).collect();
            layouts.extend(larger);
        }
        assert!(layouts.len() > 200, "{} layouts", layouts.len());
        for layout in &layouts {
            let devices: Vec<(i32, DeviceState)> = layout.iter().map(|(_, start)| (*start, Free)).collect();
            let bar = bar(layout, &devices, &["mig-1g", "mig-3g"], true);
            let sum: i32 = bar.parts.iter().map(|part| part.slices).sum();
            assert_eq!((bar.total, sum), (8, 8), "{layout:?}");
            assert_eq!(bar.parts.iter().filter(|part| part.device.is_some()).count(), layout.len(), "{layout:?}");
            assert!(bar.parts.iter().all(|part| part.slices > 0 && part.states.len() == 1), "{bar:?}");
        }
    }

    #[test]
    fn instance_that_the_board_does_not_list_has_the_slices_of_its_name() {
        let unknown = [("2g.99gb+me", 0), ("1g.10gb", 3)];
        let devices = [(0, Used), (3, Free)];
        assert_eq!(text(&bar(&unknown, &devices, &["mig-1g"], true)), "2g.99gb+me:##|1g.10gb:.|.... +0");
        let large = [("4g.99gb", 0), ("1g.10gb", 5)];
        assert_eq!(text(&bar(&large, &devices, &["mig-3g"], true)), "4g.99gb:####|1g.10gb:x|-- +0");
        assert_eq!(
            ["7g.80gb", "1g", "1g.5gb+me.all", "g", "", "x9g", "900g"].map(leading_number),
            [7, 1, 1, 1, 1, 1, 8]
        );
    }

    #[test]
    fn shared_instance_has_the_states_of_its_time_slices() {
        let devices = [(4, Used), (4 + 16, Free), (4 + 32, Free), (0, Withdrawn)];
        let bar = bar(&[("3g.40gb", 4)], &devices, &["mig-3g"], true);
        let shared = bar.parts.iter().find(|part| part.device.is_some()).unwrap();
        let weights: Vec<_> = shared.states.iter().map(|s| (s.state, s.weight)).collect();
        assert_eq!(weights, [(SliceState::Used, 1), (SliceState::Free, 2)]);
    }

    #[test]
    fn whole_and_shared_gpus_are_one_part() {
        use SliceState as S;
        type Case<'a> = (Value, usize, &'a [(i32, DeviceState)], Option<&'a str>, &'a [(SliceState, i32)]);
        let (_, board) = &*FLEET;
        let ten_percent = json!([{"part": "rest", "computePercent": 10, "stranded": true}]);
        let rest = Rest { parts: serde_json::from_value(ten_percent).unwrap(), stranded_compute: 0 };
        let mps = json!({"mode": "Mps", "shares": [{"resource": "r", "compute": 30, "numbers": [0, 1, 2]}]});
        let turns = json!({"mode": "TimeSlice", "shares": [{"resource": "r", "numbers": [0, 1, 2]}]});
        let three = [(0, Used), (1, Free), (2, Free)];
        let cases: [Case<'_>; 5] = [
            (json!(null), 0, &[(0, Used)], Some("whole GPU"), &[(S::Used, 1)]),
            (json!(null), 0, &[(0, Unmanaged)], Some("whole GPU"), &[(S::Unmanaged, 1)]),
            (json!(null), 0, &[], None, &[(S::Withdrawn, 1)]),
            (turns, 3, &three, Some("time-slices"), &[(S::Used, 1), (S::Free, 2)]),
            (mps, 3, &three, Some("MPS shares"), &[(S::Used, 30), (S::Free, 60), (S::Stranded, 10)]),
        ];
        for (sharing, shares, devices, name, expected) in cases {
            let spec = GpuSpec { sharing: serde_json::from_value(sharing).unwrap(), ..GpuSpec::default() };
            let state = GpuState { shares: vec![ShareState::default(); shares], ..GpuState::default() };
            let devices: Vec<DeviceStatus> = devices.iter().map(|(start, state)| device(*start, *state)).collect();
            let (spec, rest) = (Some(&spec), &rest);
            let gpu = GpuSlices {
                spec,
                state: &state,
                board: Some(board),
                offers: None,
                devices: &devices,
                rest,
                available: true,
            };
            let bar = gpu.bar();
            assert_eq!((bar.total, bar.parts.len(), bar.parts[0].slices), (8, 1, 8));
            let weights: Vec<_> = bar.parts[0].states.iter().map(|s| (s.state, s.weight)).collect();
            assert_eq!((bar.parts[0].device.as_deref(), weights.as_slice()), (name, expected));
        }
    }
}
