//! Datastores on the cores.

use std::rc::Rc;

use engine::DatastoreSpec;
use messages::Failure;

use super::data_core::CoreLocal;
use super::{Cores, core_ended};

impl Cores {
    /// Sends new and changed datastores to the cores; returns a message for each.
    pub async fn reload_datastores(&self, old: &[DatastoreSpec], fresh: &[DatastoreSpec]) -> Vec<String> {
        let old_spec = |spec: &DatastoreSpec| old.iter().find(|old| old.name == spec.name);
        let changed: Vec<_> = fresh.iter().filter(|spec| old_spec(spec) != Some(*spec)).cloned().collect();
        if let Err(failure) = self.set_datastores(&changed).await {
            return vec![failure.message];
        }
        let message = |spec: &DatastoreSpec| match old_spec(spec) {
            None => format!("datastore {}: added", spec.name),
            Some(_) => format!("datastore {}: threshold and write cost applied", spec.name),
        };
        let removed = old.iter().filter(|spec| fresh.iter().all(|fresh| fresh.name != spec.name));
        let removed = removed.map(|spec| format!("datastore {}: removed", spec.name));
        changed.iter().map(message).chain(removed).collect()
    }

    /// Sends the datastores to the cores. Volumes attached later join them by name.
    pub async fn set_datastores(&self, datastores: &[DatastoreSpec]) -> Result<(), Failure> {
        for core in self.iter() {
            let datastores = datastores.to_vec();
            let set =
                async move |local: Rc<CoreLocal>| datastores.iter().for_each(|spec| local.engine.set_datastore(spec));
            core.call(set).await.map_err(core_ended)?;
        }
        Ok(())
    }

    /// Removes deleted datastores from the cores, once no volume names them.
    pub async fn remove_datastores(&self, old: &[DatastoreSpec], fresh: &[DatastoreSpec]) {
        let removed = old.iter().filter(|spec| fresh.iter().all(|fresh| fresh.name != spec.name));
        let removed: Vec<String> = removed.map(|spec| spec.name.clone()).collect();
        for core in self.iter().filter(|_| !removed.is_empty()) {
            let removed = removed.clone();
            let remove = async move |local: Rc<CoreLocal>| {
                removed.iter().for_each(|name| local.engine.remove_datastore(name));
            };
            // The call fails only if the core has ended.
            let _ = core.call(remove).await;
        }
    }
}
