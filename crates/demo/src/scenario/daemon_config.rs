//! Translates a scenario's plan into a daemon's configuration.

use std::path::Path;

use engine::WritePolicy;
use lab::scenario::test_bed::Plan;
use seam::model::RaidLevel;

use super::super::demo_daemon::parse;
use config::{Config, MEMORY_MIN_BYTES};
use terminal::Failure;
use units::exact_bytes;

/// Name of a plan's volume, as in the lab.
pub fn volume_name(number: usize) -> String {
    format!("lun{number}")
}

/// Memory of a daemon: the plan's, but at least a daemon's minimum.
pub fn memory_bytes(plan: &Plan) -> u64 {
    // Without a cache, recently written blocks are still read from memory until the next flush, so the side gets as
    // little memory as possible.
    if plan.cached { plan.memory_bytes.max(MEMORY_MIN_BYTES) >> 20 << 20 } else { MEMORY_MIN_BYTES }
}

/// The configuration of a daemon for `plan`, with paths relative to `folder`. Properties of arrays and flash without a
/// configuration key are set afterwards.
pub fn configuration(folder: &Path, plan: &Plan) -> Result<Config, Failure> {
    let mut config = parse(folder, &text(plan))?;
    for (array, (spec, _)) in config.arrays.iter_mut().zip(&plan.arrays) {
        array.spec = *spec;
    }
    if let (Some(flash), Some(planned)) = (&mut config.flash, &plan.flash) {
        flash.ssd = Some(planned.ssd());
    }
    Ok(config)
}

/// The configuration as text.
fn text(plan: &Plan) -> String {
    let mut text = format!(
        "[state]\ndirectory = \"state\"\n[memory]\nsize = \"{}\"\nkeep_in = \"none\"\n\
         [control]\nsocket = \"control.sock\"\n\
         [api]\nlisten = \"127.0.0.1:0\"\n[nbd]\nlisten = [\"unix:nbd.sock\"]\nsocket_mode = \"0600\"\n",
        exact_bytes(memory_bytes(plan))
    );
    if let Some(flash) = &plan.flash {
        let devices: Vec<String> = (0..flash.devices).map(|number| format!("\"flash-{number}\"")).collect();
        // The lab's SSDs have no endurance limit and no scrub.
        text += &format!(
            "[flash]\ndevices = [{}]\nsize = \"{}\"\nallow_single_copy = {}\nendurance_dwpd = 0\nscrub = \"off\"\n",
            devices.join(", "),
            exact_bytes(flash.bytes),
            flash.devices == 1
        );
    }
    let policy = if plan.cached { plan.policy } else { WritePolicy::None };
    for (number, (array, bytes)) in plan.arrays.iter().enumerate() {
        let level = RaidLevel::ALL.iter().find(|(_, level)| *level == array.level).map(|(level, _)| level);
        text += &format!(
            "[[array]]\nname = \"array{number}\"\nraid = {}\ndisks = {}\ndisk = \"{}\"\nstripe = \"{}\"\n\
             [[volume]]\nname = \"{}\"\nbacking = \"sim://array{number}\"\nsize = \"{}\"\npolicy = \"{policy}\"\n",
            level.expect("every level has a number"),
            array.disks,
            array.disk,
            exact_bytes(array.stripe_unit_bytes),
            volume_name(number),
            exact_bytes(*bytes),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use lab::scenario::{ALL, find};

    use super::*;

    #[test]
    fn configuration_matches_the_plan_of_either_side() {
        let folder = Path::new("/nowhere");
        for scenario in ALL.iter().filter(|scenario| scenario.demo.is_some()) {
            let setup = (scenario.demo().setup)(scenario.demo().byte_divisor_min);
            for plan in [&setup.with, &setup.without] {
                let config = configuration(folder, plan).unwrap_or_else(|error| panic!("{}: {error:?}", scenario.name));
                let specs: Vec<_> = config.arrays.iter().map(|array| array.spec).collect();
                assert_eq!(specs, plan.arrays.iter().map(|(spec, _)| *spec).collect::<Vec<_>>(), "{}", scenario.name);
                let sizes: Vec<_> = config.volumes.iter().filter_map(|volume| volume.size_bytes).collect();
                assert_eq!(sizes, plan.arrays.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), "{}", scenario.name);
                let ssd = config.flash.as_ref().and_then(|flash| flash.ssd);
                assert_eq!(ssd, plan.flash.map(|flash| flash.ssd()), "{}", scenario.name);
                let policies = config.volumes.iter().map(|volume| volume.policy);
                let policy = if plan.cached { plan.policy } else { WritePolicy::None };
                assert!(policies.into_iter().all(|volume_policy| volume_policy == policy), "{}", scenario.name);
            }
        }
    }

    #[test]
    fn memory_is_the_plans_but_at_least_a_daemons_minimum() {
        let plan = |name: &str| (find(name).expect("a scenario").demo().setup)(20).with;
        let memory = |plan: &Plan| configuration(Path::new("/nowhere"), plan).map(|config| config.memory_bytes);
        assert_eq!(memory(&plan("vnx-dram")).expect("it can be read"), 190 << 20);
        assert_eq!(memory(&plan("autocache")).expect("it can be read"), MEMORY_MIN_BYTES);
    }
}
