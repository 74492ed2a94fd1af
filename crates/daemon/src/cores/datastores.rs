//! Datastores on the cores.

use std::rc::Rc;

use engine::DatastoreSpec;
use messages::Failure;

use super::data_core::Local;
use super::{Cores, core_gone};

impl Cores {
    /// Sends new and changed datastores to the cores; returns a message for each.
    pub async fn reload_datastores(&self, old: &[DatastoreSpec], fresh: &[DatastoreSpec]) -> Vec<String> {
        let before = |spec: &DatastoreSpec| old.iter().find(|old| old.name == spec.name);
        let changed: Vec<_> = fresh.iter().filter(|spec| before(spec) != Some(*spec)).cloned().collect();
        if let Err(failure) = self.tell_datastores(&changed).await {
            return vec![failure.message];
        }
        let said = |spec: &DatastoreSpec| match before(spec) {
            None => format!("datastore {}: added", spec.name),
            Some(_) => format!("datastore {}: its threshold and its cost of a write were taken over", spec.name),
        };
        let gone = old.iter().filter(|spec| fresh.iter().all(|fresh| fresh.name != spec.name));
        let gone = gone.map(|spec| format!("datastore {}: removed", spec.name));
        changed.iter().map(said).chain(gone).collect()
    }

    /// Sends the datastores to the cores. Volumes attached later join them by name.
    pub async fn tell_datastores(&self, datastores: &[DatastoreSpec]) -> Result<(), Failure> {
        for core in self.iter() {
            let datastores = datastores.to_vec();
            let tell =
                async move |local: Rc<Local>| datastores.iter().for_each(|spec| local.engine.set_datastore(spec));
            core.call(tell).await.map_err(core_gone)?;
        }
        Ok(())
    }

    /// Removes deleted datastores from the cores, once no volume names them.
    pub async fn forget_datastores(&self, old: &[DatastoreSpec], fresh: &[DatastoreSpec]) {
        let gone = old.iter().filter(|spec| fresh.iter().all(|fresh| fresh.name != spec.name));
        let gone: Vec<String> = gone.map(|spec| spec.name.clone()).collect();
        for core in self.iter().filter(|_| !gone.is_empty()) {
            let gone = gone.clone();
            let forget = async move |local: Rc<Local>| {
                gone.iter().for_each(|name| local.engine.remove_datastore(name));
            };
            // The call fails only if the core has ended.
            let _ = core.call(forget).await;
        }
    }
}
