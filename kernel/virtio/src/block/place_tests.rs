//! Places of requests whose tasks end before the device answers.

use freehold_virtqueue::model;

use super::requests::{Requests, Segments};
use super::{DEPTH, RequestKind};
use crate::driver_tests::{answer_one, fake_disk};
use crate::transport::Features;
use crate::{BlockError, SECTOR_SIZE};

#[test]
fn a_place_is_given_to_another_after_its_task_and_the_device_are_done_with_it() {
    for device_is_first in [true, false] {
        let fake = fake_disk(64, Features::empty());
        let segments = Segments { most: 4, length: 1 << 20 };
        let mut requests = Requests::new(fake.clone(), model::limited_device(1 << 20), segments).unwrap();
        let number = requests.take_place(&mut false).unwrap().unwrap();
        let data = requests.idle_spare(SECTOR_SIZE);
        assert_eq!(requests.send(number, RequestKind::In, 0, data.as_ref()), Ok(true));
        assert_eq!(requests.abandon(number, BlockError::Killed), Err(BlockError::Killed));
        if device_is_first {
            assert!(answer_one(&fake));
            requests.reap().unwrap();
        } else {
            requests.release(number);
        }
        assert_eq!(requests.free_places(), DEPTH - 1);
        if device_is_first {
            requests.release(number);
        } else {
            assert!(answer_one(&fake));
            requests.reap().unwrap();
        }
        assert_eq!(requests.free_places(), DEPTH);
        requests.validate();
    }
}
