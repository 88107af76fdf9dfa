//! Messages of the pod resources and the device plugin API.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use fuzz::{Choices, TestCaseResult, Times, check, damaged, prop_assert, prop_assert_eq};
use gputenancy_agent::{
    device::DeviceId,
    gpu::Connections,
    grpc::{
        pod_resources::{by_resource, owners},
        proto::{plugin, podresources},
    },
    kubelet::{
        device_list::{self, DeviceList, ListedDevice},
        plugin::{journal::AllocationJournal, preferred},
    },
};
use gputenancy_crds::names::is_device_resource;
use prost::Message;

use super::{
    id,
    newer::{NewerList, devices, known, list},
    some,
};

#[test]
fn list_of_a_newer_kubelet_is_read_and_every_device_has_an_owner_that_lists_it() {
    check("pod resources", |choices, times| {
        let list = list(choices);
        let bytes = list.encode_to_vec();
        let read = times.decoder(|| podresources::ListPodResourcesResponse::decode(&bytes[..]));
        drop(times.baseline(|| NewerList::decode(&bytes[..])));
        let expected = known(&list);
        prop_assert_eq!(read.as_ref().ok(), Some(&expected));
        let mut listed: BTreeMap<DeviceId, BTreeSet<(&str, &str, &str)>> = BTreeMap::new();
        for pod in &list.pods {
            for container in &pod.containers {
                for id in container
                    .devices
                    .iter()
                    .filter(|d| is_device_resource(&d.resource_name))
                    .flat_map(|d| &d.device_ids)
                {
                    let owner = (&*pod.namespace, &*pod.name, &*container.name);
                    listed.entry(DeviceId::new(id)).or_default().insert(owner);
                }
            }
        }
        let owners = owners(read.unwrap_or_default(), is_device_resource);
        prop_assert_eq!(owners.keys().collect::<Vec<_>>(), listed.keys().collect::<Vec<_>>());
        for (id, owner) in &owners {
            prop_assert!(listed[id].contains(&(&*owner.namespace, &*owner.pod, &*owner.container)), "{id}: {owner:?}");
        }
        Ok(())
    });
}

#[test]
fn allocatable_devices_of_all_numa_nodes_are_read() {
    check("allocatable devices", |choices, times| {
        let parts: Vec<_> =
            some(choices, 5, devices).iter().map(|d| (d.resource_name.clone(), d.device_ids.clone())).collect();
        let part = |(resource_name, device_ids): (String, Vec<String>)| podresources::ContainerDevices {
            resource_name,
            device_ids,
        };
        let message = podresources::AllocatableResourcesResponse { devices: parts.iter().cloned().map(part).collect() };
        let bytes = message.encode_to_vec();
        let read = times.decoder(|| podresources::AllocatableResourcesResponse::decode(&bytes[..]));
        let found = by_resource(read.unwrap_or_default().devices, is_device_resource);
        let flat = |(resource, ids): (&String, &BTreeSet<DeviceId>)| {
            ids.iter().map(|id| (resource.clone(), id.to_string())).collect::<Vec<_>>()
        };
        let found: BTreeSet<_> = found.iter().flat_map(flat).collect();
        let managed = parts.iter().filter(|(resource, _)| is_device_resource(resource));
        let all: BTreeSet<_> = managed.flat_map(|(r, ids)| ids.iter().map(move |id| (r.clone(), id.clone()))).collect();
        prop_assert_eq!(found, all);
        Ok(())
    });
}

fn fails_with_a_text<M: Message + Default + PartialEq + Debug>(bytes: &[u8], times: &Times) -> TestCaseResult {
    match times.decoder(|| M::decode(bytes)) {
        Ok(message) => prop_assert_eq!(M::decode(&message.encode_to_vec()[..]), Ok(message)),
        Err(error) => prop_assert!(error.to_string().len() > 10, "{error}"),
    }
    Ok(())
}

#[test]
fn broken_message_is_an_error_with_a_text() {
    check("broken messages", |choices, times| {
        let bytes = if choices.once_in(4) { some(choices, 200, Choices::byte) } else { list(choices).encode_to_vec() };
        let bytes = damaged(bytes, choices);
        fails_with_a_text::<podresources::ListPodResourcesResponse>(&bytes, times)?;
        fails_with_a_text::<podresources::AllocatableResourcesResponse>(&bytes, times)?;
        fails_with_a_text::<plugin::AllocateRequest>(&bytes, times)?;
        fails_with_a_text::<plugin::PreferredAllocationRequest>(&bytes, times)?;
        fails_with_a_text::<plugin::PreStartContainerRequest>(&bytes, times)?;
        fails_with_a_text::<plugin::RegisterRequest>(&bytes, times)?;
        drop(owners(
            podresources::ListPodResourcesResponse::decode(&bytes[..]).unwrap_or_default(),
            is_device_resource,
        ));
        Ok(())
    });
}

#[test]
fn device_list_that_kubelet_decodes_has_every_device() {
    check("device lists", |choices, times| {
        let one = |choices: &mut Choices| {
            let numa = choices.once_in(2).then(|| i64::try_from(choices.below(8)).unwrap_or_default());
            (DeviceId::new(id(choices)), ListedDevice { healthy: choices.once_in(2), numa })
        };
        let list: DeviceList = some(choices, 12, one).into_iter().collect();
        let bytes = device_list::response(&list).encode_to_vec();
        let read = times.decoder(|| plugin::ListAndWatchResponse::decode(&bytes[..]));
        let device = |d: plugin::Device| {
            let numa = d.topology.and_then(|topology| topology.nodes.first().map(|node| node.id));
            (DeviceId::new(d.id), ListedDevice { healthy: d.health == plugin::HEALTHY, numa })
        };
        prop_assert_eq!(read.unwrap_or_default().devices.into_iter().map(device).collect::<DeviceList>(), list);
        Ok(())
    });
}

#[test]
fn preferred_devices_are_of_those_in_the_request_and_include_the_required_ones() {
    check("preferred allocation", |choices, times| {
        let available: BTreeSet<String> = some(choices, 12, id).into_iter().collect();
        let mut must: BTreeSet<String> = available.iter().filter(|_| choices.once_in(4)).cloned().collect();
        must.extend(some(choices, 1, id));
        let required: BTreeSet<String> = must.intersection(&available).cloned().collect();
        let request = plugin::ContainerPreferredAllocationRequest {
            available_device_i_ds: available.iter().cloned().collect(),
            must_include_device_i_ds: must.into_iter().collect(),
            allocation_size: i32::try_from(choices.number()).unwrap_or(2),
        };
        let request = plugin::PreferredAllocationRequest { container_requests: vec![request] };
        let bytes = request.encode_to_vec();
        let read = times.decoder(|| plugin::PreferredAllocationRequest::decode(&bytes[..])).unwrap_or_default();
        let plugin::ContainerPreferredAllocationRequest {
            available_device_i_ds,
            must_include_device_i_ds,
            allocation_size,
        } = read.container_requests[0].clone();
        let ids = |ids: Vec<String>| ids.into_iter().map(DeviceId::new).collect::<Vec<_>>();
        let (of, must) = (ids(available_device_i_ds), ids(must_include_device_i_ds));
        let journal = AllocationJournal::default();
        let candidates = journal.candidates(&of, &BTreeSet::new(), &BTreeSet::new());
        let size = usize::try_from(allocation_size).unwrap_or(0);
        let chosen = preferred::choose(&candidates, &must, size, journal.policy(), &Connections::default());
        let names: BTreeSet<String> = chosen.iter().map(ToString::to_string).collect();
        prop_assert_eq!(names.len(), chosen.len(), "each once");
        prop_assert!(names.is_subset(&available) && names.is_superset(&required), "{names:?} of {request:?}");
        prop_assert_eq!(names.len(), available.len().min(size.max(required.len())));
        Ok(())
    });
}
