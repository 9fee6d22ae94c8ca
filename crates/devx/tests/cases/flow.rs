//! Flow rules: their requests, and the order of destruction.

use std::sync::{Arc, Mutex};

use crate::support::fake::context;
use verbless_devx::abi::attr::{flow_create, flow_destroy, flow_matcher_create};
use verbless_devx::abi::{Method, method};
use verbless_devx::{Errno, ErrorKind};

#[test]
fn flow_rule_sends_matcher_tir_and_tag() {
    let sent: Arc<Mutex<Vec<Method>>> = Arc::default();
    let log = sent.clone();
    let context = context(move |method, call| {
        match method {
            method::FLOW_MATCHER_CREATE => {
                use flow_matcher_create::{FLOW_TYPE, HANDLE, MATCH_CRITERIA, MATCH_MASK};
                assert_eq!((call.length(MATCH_MASK), call.length(MATCH_CRITERIA)), (64, 1));
                assert_eq!(call.data(MATCH_CRITERIA), 1);
                let priority = u64::from_ne_bytes([0x34, 0x12, 0, 0, 0, 0, 0, 0]);
                let of_type = (call.element(FLOW_TYPE), call.length(FLOW_TYPE));
                assert_eq!(of_type, (0, 2), "MLX5_IB_FLOW_TYPE_NORMAL, with a u16");
                assert_eq!(call.data(FLOW_TYPE), priority.to_le());
                call.set(HANDLE, 7);
            }
            method::FLOW_CREATE => {
                use flow_create::{DEST_DEVX, HANDLE, MATCH_VALUE, MATCHER, TAG};
                assert_eq!((call.data(DEST_DEVX), call.data(MATCHER)), (5, 7));
                assert_eq!((call.data(TAG), call.length(TAG)), (0xab_cdef, 4));
                assert_eq!(call.length(MATCH_VALUE), 64);
                call.set(HANDLE, 9);
            }
            method::FLOW_DESTROY => assert_eq!(call.data(flow_destroy::HANDLE), 9),
            method::DEVX_OBJ_CREATE => call.set(0x1000, 5),
            _ => {}
        }
        log.lock().unwrap().push(method);
        None
    });
    let tir = context.obj_create(&[0; 16], &mut [0; 16]).unwrap();
    let matcher = Arc::new(context.create_flow_matcher(&[0xff; 64], 1, 0x1234).unwrap());
    let rule = matcher.create_rule(&[0x11; 64], &tir, Some(0xab_cdef)).unwrap();
    drop(matcher);
    drop(rule);
    let sent = sent.lock().unwrap();
    assert_eq!(sent[sent.len() - 2..], [method::FLOW_DESTROY, method::FLOW_MATCHER_DESTROY]);
}

#[test]
fn invalid_flow_rules_are_rejected_before_ioctl() {
    let context = context(|method, _| (method == method::FLOW_CREATE).then_some(Err(Errno::EPERM)));
    let tir = context.obj_create(&[0; 16], &mut [0; 16]).unwrap();
    let matcher = Arc::new(context.create_flow_matcher(&[0xff; 64], 1, 0).unwrap());
    let error = |value: &[u8], tag| matcher.create_rule(value, &tir, tag).unwrap_err();
    assert!(error(&[0; 60], None).to_string().contains("60 bytes, and its mask 64"));
    assert!(error(&[0; 64], Some(1 << 24)).to_string().contains("0x1000000"));
    let refused = error(&[0; 64], None);
    assert_eq!(refused.kind(), ErrorKind::Permission);
    assert!(refused.to_string().contains("CAP_NET_RAW"), "{refused}");
}
